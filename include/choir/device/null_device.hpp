#pragma once
// Allocates addresses without memory and computes nothing: the real step run on it yields the
// memory plan and the FLOP and byte counts of any rank of any layout.
#include "choir/device/device.hpp"

namespace choir {

class NullDevice : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::null; }
  std::string description() const override { return "null (counts only)"; }
  void* allocate(std::size_t bytes) override;
  void release(void*, std::size_t bytes) noexcept override { live_ -= bytes; }
  void zero(void*, std::size_t) override {}
  void copy(void*, const void*, std::size_t) override {}
  void copy_from_host(void*, const void*, std::size_t) override {}
  void copy_to_host(void*, const void*, std::size_t) override {}

  std::size_t live_bytes() const { return live_; }

 private:
  // Non-canonical on x86-64 and outside every mapping elsewhere: a dereference faults at once.
  std::uintptr_t next_ = std::uintptr_t{1} << 60;
  std::size_t live_ = 0;
};

}  // namespace choir
