#pragma once
// The CPU as a device whose memory the host must not touch, for tests of programs that will run on
// a GPU. The memory is closed (any access ends the program) from every copy, every wait and every
// query for host access, until the next op asks for the kind of its device.
#include <sys/mman.h>

#include <map>

#include "choir/core/error.hpp"
#include "src/device/cpu_device.hpp"

namespace choir::test {

class SeparateDevice final : public CpuDevice {
 public:
  DeviceKind kind() const override { return open(), DeviceKind::cpu; }
  bool host_visible() const override { return close(), false; }

  void* allocate(std::size_t bytes) override {
    void* address = CpuDevice::allocate(bytes);
    blocks_[address] = bytes;
    protect(address, bytes);
    return address;
  }
  void release(void* address, std::size_t bytes) noexcept override {
    blocks_.erase(address);
    CpuDevice::release(address, bytes);
  }
  void zero(void* address, std::size_t bytes) override {
    open(), CpuDevice::zero(address, bytes), close();
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    open(), CpuDevice::copy(to, from, bytes), close();
  }
  void copy_from_host(void* to, const void* host, std::size_t bytes) override {
    open(), CpuDevice::copy(to, host, bytes), close();
  }
  void copy_to_host(void* host, const void* from, std::size_t bytes) override {
    open(), CpuDevice::copy(host, from, bytes), close();
  }
  void synchronize(NativeStream) override { close(); }
  void synchronize_event(NativeEvent) override { close(); }

  void open() const { turn(true); }
  void close() const { turn(false); }

 private:
  void turn(bool open) const {
    if (open == open_) return;
    open_ = open;
    for (const auto& [address, bytes] : blocks_) protect(address, bytes);
  }
  void protect(void* address, std::size_t bytes) const {
    const int failed = mprotect(address, bytes, open_ ? PROT_READ | PROT_WRITE : PROT_NONE);
    CHOIR_CHECK(failed == 0, "mprotect of {} bytes", bytes);
  }

  std::map<void*, std::size_t> blocks_;
  mutable bool open_ = false;
};

}  // namespace choir::test
