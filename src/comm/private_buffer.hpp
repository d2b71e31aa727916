#pragma once
// A communication block in ordinary memory: zeroed, 64-byte aligned, in huge pages where that pays.
#include "choir/comm/communicator.hpp"

namespace choir {

class PrivateBuffer final : public CommBuffer {
 public:
  explicit PrivateBuffer(std::size_t bytes);
  ~PrivateBuffer() override;
  PrivateBuffer(const PrivateBuffer&) = delete;
  PrivateBuffer& operator=(const PrivateBuffer&) = delete;
  void* data() const override { return data_; }
  std::size_t bytes() const override { return bytes_; }
  bool shared() const override { return false; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace choir
