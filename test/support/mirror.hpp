#pragma once
// Host tensors with a copy on some device, so that one test body runs on every device.
#include <deque>

#include "test/support/forbidden_memory.hpp"
#include "test/support/op_test.hpp"

namespace choir::test {

/// in() and io() return views of device memory with a copy of the host tensor; fetch() copies the
/// results of io() back and checks that nothing was written behind any of them. The host tensors
/// must not move meanwhile.
class Mirror {
 public:
  explicit Mirror(Device& device) : device_(&device) {}
  ~Mirror() {
    for (const Copy& copy : copies_) allow(copy.end(), kSlack);
  }
  Mirror(const Mirror&) = delete;

  /// `skew`: number of elements between an aligned address and the first element. An empty tensor
  /// stays empty.
  TensorView in(const HostTensor& tensor, int skew = 0) {
    if (tensor.shape().rank() == 0) return {};
    const std::size_t at = static_cast<std::size_t>(skew) * size_of(tensor.dtype());
    return {add(nullptr, tensor.data(), tensor.bytes(), at), tensor.dtype(), tensor.shape()};
  }
  TensorView io(HostTensor& tensor, int skew = 0) {
    const TensorView view = in(tensor, skew);
    if (!view.empty()) copies_.back().host = tensor.data();
    return view;
  }
  template <class S>
  S* object(S& value) {
    return static_cast<S*>(add(&value, &value, sizeof value, 0));
  }
  TensorView workspace(std::int64_t bytes) {
    const std::vector<unsigned char> poison(static_cast<std::size_t>(bytes), 0xFF);
    return {add(nullptr, poison.data(), poison.size(), 0), DType::u8, {bytes}};
  }

  void fetch() {
    for (const Copy& copy : copies_) {
      std::vector<unsigned char> slack(kSlack);
      auto* data = static_cast<unsigned char*>(copy.buffer.data()) + copy.at;
      if (!can_forbid()) {
        device_->copy_to_host(slack.data(), copy.end(), kSlack);
        EXPECT_TRUE(std::all_of(slack.begin(), slack.end(), [](auto c) { return c == kByte; }))
            << "written behind the end of " << copy.bytes << " bytes";
      }
      if (copy.host != nullptr) device_->copy_to_host(copy.host, data, copy.bytes);
    }
  }

 private:
  static constexpr std::size_t kSlack = 64;
  static constexpr unsigned char kByte = 0xFF;
  struct Copy {
    void* host;
    std::size_t bytes, at;
    Buffer buffer;
    unsigned char* end() const { return static_cast<unsigned char*>(buffer.data()) + at + bytes; }
  };
  void* add(void* host, const void* contents, std::size_t bytes, std::size_t at) {
    copies_.push_back({host, bytes, at, Buffer(*device_, at + bytes + kSlack)});
    auto* memory = static_cast<unsigned char*>(copies_.back().buffer.data());
    const std::vector<unsigned char> slack(at + bytes + kSlack, kByte);
    device_->copy_from_host(memory, slack.data(), slack.size());
    if (bytes > 0) device_->copy_from_host(memory + at, contents, bytes);
    forbid(copies_.back().end(), kSlack);
    return memory + at;
  }

  Device* device_;
  std::deque<Copy> copies_;
};

}  // namespace choir::test
