#pragma once
// The CPU as a device: page-aligned memory and OpenMP threads.
#include "choir/device/device.hpp"

namespace choir {

/// Instruction sets of the processor according to its cpuid flags. The model number is not used,
/// because virtual machines report a wrong one.
struct CpuFeatures {
  bool avx2 = false, avx512 = false, avx512_bf16 = false, amx_bf16 = false;
};
const CpuFeatures& cpu_features();

/// Throws Error if this binary was compiled for instructions that the processor lacks.
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
