#pragma once
// A communication block in the memory of a device, zeroed.
#include "choir/comm/communicator.hpp"
#include "choir/device/device.hpp"

namespace choir {

class DeviceBlock final : public CommBuffer {
 public:
  DeviceBlock(Device& device, std::size_t bytes) : memory_(device, bytes) {
    if (bytes > 0) device.zero(memory_.data(), bytes);
  }
  void* data() const override { return memory_.data(); }
  std::size_t bytes() const override { return memory_.bytes(); }
  bool shared() const override { return false; }

 private:
  Buffer memory_;
};

}  // namespace choir
