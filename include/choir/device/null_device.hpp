#pragma once
// A device that allocates addresses without memory and computes nothing. The real step, run on it,
// yields the memory plan and the FLOP and byte counts of any rank of any layout.
#include "choir/device/device.hpp"

namespace choir {

class NullDevice : public Device {
 public:
  /// Plans for a device of kind `plans_for` (the sizes of workspaces depend on it).
  explicit NullDevice(DeviceKind plans_for = DeviceKind::cpu)
      : plans_for_(plans_for), host_visible_(plans_for == DeviceKind::cpu) {}
  /// Plans for a device like `target`.
  explicit NullDevice(const Device& target)
      : plans_for_(target.plans_for()), host_visible_(target.host_visible()) {}
  bool host_visible() const override { return host_visible_; }
  DeviceKind plans_for() const override { return plans_for_; }
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
  DeviceKind plans_for_;
  bool host_visible_;
  // Non-canonical on x86-64 and outside every mapping elsewhere: a dereference faults at once.
  std::uintptr_t next_ = std::uintptr_t{1} << 60;
  std::size_t live_ = 0;
};

}  // namespace choir
