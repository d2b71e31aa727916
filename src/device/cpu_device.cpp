#include "src/device/cpu_device.hpp"

#include <cpuid.h>
#include <fmt/core.h>
#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "choir/core/error.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

CpuFeatures read_features() {
  CpuFeatures features;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) features.amx_bf16 = (d >> 22) & 1u;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) features.avx512_bf16 = (a >> 5) & 1u;
  // The builtins also check that the operating system saves the wide registers.
  features.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  features.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  features.avx512_bf16 = features.avx512_bf16 && features.avx512;
  return features;
}

/// Splits large blocks among all threads, so that every thread touches its own pages first.
template <class Body>
void in_parallel(std::size_t bytes, Body body) {
  constexpr std::size_t kGrain = std::size_t{1} << 20;
  if (bytes == 0) return;  // memcpy and memset require valid addresses even for 0 bytes
  if (bytes <= kGrain) return body(std::size_t{0}, bytes);
  const auto chunks = static_cast<std::int64_t>((bytes + kGrain - 1) / kGrain);
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < chunks; ++i) {
    const std::size_t first = static_cast<std::size_t>(i) * kGrain;
    body(first, std::min(kGrain, bytes - first));
  }
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = read_features();
  return features;
}

void require_compiled_isa() {
  [[maybe_unused]] const CpuFeatures& cpu = cpu_features();
  const char* missing = nullptr;
#if defined(__AVX512F__)
  if (!cpu.avx512) missing = "AVX-512";
#elif defined(__AVX2__)
  if (!cpu.avx2) missing = "AVX2";
#endif
#if defined(__AVX512BF16__)
  if (!cpu.avx512_bf16) missing = "AVX-512 BF16";
#endif
  if (missing)
    throw Error(ExitCode::other,
                fmt::format("this binary was compiled for {}, which this processor lacks", missing),
                "rebuild on a machine like this one, or with `make MARCH=x86-64-v3`");
}

std::string CpuDevice::description() const {
  const CpuFeatures& cpu = cpu_features();
  return fmt::format("cpu ({}{}{}, {})",
                     cpu.avx512 ? "AVX-512"
                     : cpu.avx2 ? "AVX2"
                                : "baseline",
                     cpu.avx512_bf16 ? " BF16" : "", cpu.amx_bf16 ? " AMX" : "",
                     counted(omp_get_max_threads(), "thread"));
}

void* CpuDevice::allocate(std::size_t bytes) {
  // Whole pages directly from the system: freed memory returns to it, alignment costs nothing, and
  // large blocks may use pages of 2 MiB.
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED)
    throw Error(
        ExitCode::other,
        fmt::format("out of memory: {} requested", format_bytes(static_cast<double>(bytes))),
        "lower train.micro_batch_size or model.block_size");
  if (bytes >= kHugePage) madvise(address, bytes, MADV_HUGEPAGE);
  return address;
}

void CpuDevice::release(void* address, std::size_t bytes) noexcept {
  munmap(address, bytes);
}

void CpuDevice::zero(void* address, std::size_t bytes) {
  in_parallel(bytes, [&](std::size_t first, std::size_t n) {
    std::memset(static_cast<char*>(address) + first, 0, n);
  });
}

void CpuDevice::copy(void* to, const void* from, std::size_t bytes) {
  in_parallel(bytes, [&](std::size_t first, std::size_t n) {
    std::memcpy(static_cast<char*>(to) + first, static_cast<const char*>(from) + first, n);
  });
}

void CpuDevice::copy_from_host(void* to, const void* host, std::size_t bytes) {
  copy(to, host, bytes);
}

void CpuDevice::copy_to_host(void* host, const void* from, std::size_t bytes) {
  copy(host, from, bytes);
}

namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

CpuModel parse_cpuinfo(const std::string& text) {
  CpuModel model;
  std::string implementer, part;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string_view whole = line;
    const std::string key(trim(whole.substr(0, colon))), value(trim(whole.substr(colon + 1)));
    if ((key == "model name" || key == "cpu") && model.name.empty()) model.name = value;
    if (key == "CPU implementer") implementer = value;
    if (key == "CPU part") part = value;
    if (key != "cpu MHz" && key != "clock") continue;
    const double mhz = std::strtod(value.c_str(), nullptr);
    if (mhz <= 0) continue;
    model.low = model.low > 0 ? std::min(model.low, mhz) : mhz;
    model.high = std::max(model.high, mhz);
  }
  if (model.name.empty() && !part.empty())
    model.name = fmt::format("Arm implementer {} part {}", implementer, part);
  return model;
}

CpuModel cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  CpuModel model = parse_cpuinfo({std::istreambuf_iterator<char>(file), {}});
  const std::string folder = "/sys/devices/system/cpu/cpu0/cpufreq/";
  constexpr double kPerMhz = 1000;  // cpufreq reports kHz
  model.most = std::strtod(first_line(folder + "cpuinfo_max_freq").c_str(), nullptr) / kPerMhz;
  model.governor = first_line(folder + "scaling_governor");
  return model;
}

std::string describe_clocks(const std::vector<CpuModel>& hosts) {
  double low = 0, high = 0, most = 0;
  std::set<std::string> governors;
  for (const CpuModel& host : hosts) {
    if (host.low > 0) low = low > 0 ? std::min(low, host.low) : host.low;
    high = std::max(high, host.high);
    most = std::max(most, host.most);
    if (!host.governor.empty()) governors.insert(host.governor);
  }
  std::vector<std::string> words;
  if (high - low >= 1)
    words.push_back(fmt::format("{:.0f} to {:.0f} MHz then", low, high));
  else if (high > 0)
    words.push_back(fmt::format("{:.0f} MHz then", high));
  if (most > 0) words.push_back(fmt::format("at most {:.0f} MHz", most));
  if (!governors.empty())
    words.push_back("governor " + join({governors.begin(), governors.end()}, " or "));
  return join(words, ", ");
}

}  // namespace choir
