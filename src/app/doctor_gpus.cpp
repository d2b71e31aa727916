// choir doctor: GPUs, and the libraries that are looked for when they are needed.
#include <fmt/core.h>

#include <filesystem>

#include "choir/app/doctor.hpp"
#include "choir/comm/nccl_communicator.hpp"
#include "choir/core/clock.hpp"
#include "choir/core/shared_library.hpp"

namespace choir {
namespace {

int nvidia_devices() {
  std::error_code ignored;
  int devices = 0;
  while (std::filesystem::exists(fmt::format("/dev/nvidia{}", devices), ignored)) ++devices;
  return devices;
}

/// A library that tells its version as one number, major * `unit` + minor * 100 (cuDNN 9 and
/// cuBLAS).
GpuLibrary numbered(const std::string& name, std::initializer_list<const char*> sonames,
                    const char* function, std::size_t unit, const std::string& without) {
  SharedLibrary library(name, sonames);
  std::size_t (*version)() = nullptr;
  library.find(version, function);
  if (!library.loaded())
    return {.name = name, .version = {}, .reason = library.reason(), .without = without};
  const std::size_t number = version();
  return {.name = name,
          .version = fmt::format("{}.{}.{}", number / unit, number % unit / 100, number % 100),
          .reason = {},
          .without = without};
}

std::vector<GpuLibrary> find_libraries() {
  const NcclAvailability nccl = nccl_availability();
  return {numbered("cuBLASLt", {"libcublasLt.so.13", "libcublasLt.so.12"}, "cublasLtGetVersion",
                   10000, "products by choir's own kernels"),
          numbered("cuDNN", {"libcudnn.so.9"}, "cudnnGetVersion", 10000,
                   "attention by choir's own kernels"),
          {.name = "NCCL",
           .version = nccl.version,
           .reason = nccl.reason,
           .without = "GPUs talk through host memory"}};
}

}  // namespace

std::vector<Finding> judge_gpus(const cuda::Availability& found, int device_files,
                                const std::vector<GpuLibrary>& libraries) {
  std::string versions;
  if (!found.driver.empty()) versions += fmt::format("; driver for CUDA {}", found.driver);
  if (!found.toolkit.empty()) versions += fmt::format("; built with CUDA {}", found.toolkit);
  std::vector<Finding> findings;
  if (found.cards.empty()) {
    const std::string text = fmt::format("none: {}{}", found.reason, versions);
    if (device_files > 0)
      findings.push_back({Health::warning, "GPUs",
                          fmt::format("{} NVIDIA devices that cannot be used: {}{}", device_files,
                                      found.reason, versions),
                          found.hint});
    else
      findings.push_back({Health::ok, "GPUs", text, ""});
  } else {
    findings.push_back({Health::ok, "GPUs", fmt::format("{}{}", found.cards.size(), versions), ""});
  }
  for (const cuda::Card& card : found.cards)
    findings.push_back(
        {Health::ok, fmt::format("GPU {}", card.ordinal),
         fmt::format("{}, sm_{}{}, {} SMs, {}, {} at {}, NUMA node {}{}", card.name, card.major,
                     card.minor, card.multiprocessors,
                     format_bytes(static_cast<double>(card.memory)), card.uuid, card.pci,
                     card.numa_node < 0 ? "unknown" : std::to_string(card.numa_node),
                     card.peak_bf16_flops > 0
                         ? fmt::format(", peak {:.0f} TFLOP/s bf16", card.peak_bf16_flops / 1e12)
                         : ", peak unknown"),
         ""});
  for (const GpuLibrary& library : libraries) {
    if (!library.version.empty())
      findings.push_back({Health::ok, library.name, library.version, ""});
    else if (found.cards.empty())
      findings.push_back({Health::ok, library.name, "not found; no GPU misses it", ""});
    else
      findings.push_back({Health::warning, library.name,
                          fmt::format("{}: {}", library.reason, library.without),
                          "put its folder into LD_LIBRARY_PATH (module load ...)"});
  }
  return findings;
}

std::vector<Finding> examine_gpus() {
  const cuda::Availability found = cuda::availability();
  // A build without CUDA has no use for them.
  const bool built = !found.toolkit.empty();
  return judge_gpus(found, nvidia_devices(), built ? find_libraries() : std::vector<GpuLibrary>{});
}

}  // namespace choir
