#pragma once
// The CPU as a device: page-aligned memory and OpenMP threads; and the name and clock rates of the
// processor, for the provenance of measurements. They are reported by the system; in virtual
// machines they may be wrong.

#include <string>
#include <vector>

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

/// The processor of one host. Clocks are in MHz; 0 means unknown.
struct CpuModel {
  std::string name;          ///< "Intel(R) Xeon(R) Platinum 8480+"; "" if unknown
  double low = 0, high = 0;  ///< lowest and highest current clock of its hardware threads
  double most = 0;           ///< the maximum clock
  std::string governor;      ///< governor of the clock, "performance"
};

/// Name and current clocks from the text of /proc/cpuinfo. On x86 these are "model name" and "cpu
/// MHz", on POWER "cpu" and "clock"; Arm has neither, and the name is made from implementer and
/// part.
CpuModel parse_cpuinfo(const std::string& text);
/// Reads /proc/cpuinfo of this host, and /sys/devices/system/cpu/cpu0/cpufreq if it exists.
CpuModel cpu_model();

/// Text for the clocks of all hosts: "2400 to 3500 MHz then, at most 3800 MHz, governor
/// performance"; "" if none is known.
std::string describe_clocks(const std::vector<CpuModel>& hosts);

}  // namespace choir
