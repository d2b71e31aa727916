#pragma once
// Tests of the cuda device. They use only the public interface, so the same sources run on a GPU
// (test_cuda) and under host execution (test_host_cuda_*).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "choir/core/tensor.hpp"
#include "src/device/cuda.hpp"
#include "test/support/forbidden_memory.hpp"

namespace choir::test {

/// Element types of model tensors on a GPU.
inline constexpr DType kGpuTypes[] = {DType::f32, DType::bf16, DType::f16};

/// The device, or nullptr (with the reason in the log) if there is none: tests skip then.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const cuda::Availability found = cuda::availability();
    if (found.cards.empty()) GTEST_SKIP() << found.reason;
    device_ = make_device(DeviceKind::cuda);
  }
  Device& device() { return *device_; }
  Stream stream() { return Stream(*device_); }

 private:
  std::unique_ptr<Device> device_;
};

/// A tensor in device memory. Unwritten elements are poison (0xFF bytes: NaN).
class DeviceTensor {
 public:
  DeviceTensor(Device& device, DType dtype, const Shape& shape)
      : device_(&device),
        bytes_(static_cast<std::size_t>(shape.count()) * size_of(dtype)),
        buffer_(device, bytes_ + kSlack) {
    view_ = {buffer_.data(), dtype, shape};
    std::vector<unsigned char> poison(bytes_ + kSlack, 0xFF);
    std::fill(poison.begin() + static_cast<std::ptrdiff_t>(bytes_), poison.end(), mark());
    device.copy_from_host(buffer_.data(), poison.data(), poison.size());
    forbid(end(), kSlack);
  }
  ~DeviceTensor() { allow(end(), kSlack); }
  DeviceTensor(const DeviceTensor&) = delete;
  DeviceTensor& operator=(const DeviceTensor&) = delete;

  DeviceTensor(Device& device, DType dtype, const Shape& shape, const void* host)
      : DeviceTensor(device, dtype, shape) {
    device.copy_from_host(view_.data, host, bytes_);
  }
  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }  // NOLINT: an argument like any other

  template <class T>
  std::vector<T> host() const {
    std::vector<T> values(bytes_ / sizeof(T));
    device_->copy_to_host(values.data(), view_.data, bytes_);
    return values;
  }
  /// True if nothing was written behind the end.
  bool intact() const {
    if (can_forbid()) return true;  // otherwise the program would have ended
    std::vector<unsigned char> slack(kSlack);
    device_->copy_to_host(slack.data(), end(), kSlack);
    return std::all_of(slack.begin(), slack.end(), [this](unsigned char c) { return c == mark(); });
  }

 private:
  static constexpr std::size_t kSlack = 64;
  /// A different poison for every tensor, so that an element copied from behind one is detected
  /// behind another.
  unsigned char mark() const {
    return static_cast<unsigned char>(reinterpret_cast<std::uintptr_t>(buffer_.data()) / 4096 * 37);
  }
  char* end() const { return static_cast<char*>(buffer_.data()) + bytes_; }
  Device* device_;
  std::size_t bytes_;
  Buffer buffer_;
  TensorView view_;
};

}  // namespace choir::test
