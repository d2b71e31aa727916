#pragma once
// A device of kind cuda whose memory is the host's: code that calls vendor libraries runs on it
// with the stand-ins of this folder.
#include <cstring>

#include "choir/device/device.hpp"

namespace choir {

class PretendCuda final : public Device {
 public:
  ~PretendCuda() override { plans() = {}; }
  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string description() const override { return "host memory called cuda"; }
  void* allocate(std::size_t bytes) override {
    allocated += bytes;
    return allocate_host(bytes);
  }
  void release(void* address, std::size_t) noexcept override { release_host(address); }
  void zero(void* address, std::size_t bytes) override { std::memset(address, 0, bytes); }
  void copy(void* to, const void* from, std::size_t n) override { std::memcpy(to, from, n); }
  void copy_from_host(void* to, const void* from, std::size_t n) override { copy(to, from, n); }
  void copy_to_host(void* to, const void* from, std::size_t n) override { copy(to, from, n); }

  std::size_t allocated = 0;
};

}  // namespace choir
