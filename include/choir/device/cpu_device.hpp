#pragma once
// The CPU as a device: page-aligned memory, OpenMP threads.
#include "choir/device/device.hpp"

namespace choir {

/// What the processor can do, read from cpuid flags (never from the model number: virtual machines
/// lie about it).
struct CpuFeatures {
  bool avx2 = false, avx512 = false, avx512_bf16 = false, amx_bf16 = false;
};
const CpuFeatures& cpu_features();

/// Throws Error when this binary was compiled for instructions the processor lacks.
void require_compiled_isa();

class CpuDevice : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string description() const override;
  void* allocate(std::size_t bytes) override;
  void release(void* address, std::size_t bytes) noexcept override;
  void zero(void* address, std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void copy_from_host(void* to, const void* host, std::size_t bytes) override;
  void copy_to_host(void* host, const void* from, std::size_t bytes) override;
};

}  // namespace choir
