#include "src/device/energy.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>
#include <utility>

#include "src/core/process.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

/// A file that holds one number, which may change; it is opened once. The files of /sys are made
/// anew by every read from their beginning.
class NumberFile {
 public:
  explicit NumberFile(const fs::path& path) : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (file_ < 0) error_ = errno;
  }
  ~NumberFile() {
    if (file_ >= 0) ::close(file_);
  }
  NumberFile(NumberFile&& other) noexcept
      : file_(std::exchange(other.file_, -1)), error_(other.error_) {}
  NumberFile& operator=(NumberFile&&) = delete;

  std::optional<std::uint64_t> read() {
    if (file_ < 0) return std::nullopt;
    std::array<char, 32> text{};
    const ssize_t length = ::pread(file_, text.data(), text.size(), 0);
    if (length < 0) error_ = errno;
    if (length <= 0) return std::nullopt;
    std::uint64_t number = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + length, number);
    if (failure != std::errc{}) return std::nullopt;
    return number;
  }
  /// The reason of a read that failed.
  std::string reason() const { return error_ != 0 ? std::strerror(error_) : "it has no number"; }

 private:
  int file_;
  int error_ = 0;
};

/// One domain of RAPL. It counts micro-joules from 0 to `most` and then begins again.
struct Domain {
  NumberFile file;
  std::uint64_t most = 0, last = 0;
};

class Processors final : public EnergyCounter {
 public:
  explicit Processors(std::vector<Domain> domains) : domains_(std::move(domains)) {}
  double joules() override {
    for (Domain& domain : domains_) {
      const std::optional<std::uint64_t> now = domain.file.read();
      if (!now) {
        sum_ = NAN;
        continue;
      }
      const std::uint64_t since =
          *now >= domain.last ? *now - domain.last : domain.most - domain.last + *now;
      domain.last = *now;
      sum_ += 1e-6 * static_cast<double>(since);
    }
    return sum_;
  }

 private:
  std::vector<Domain> domains_;
  double sum_ = 0;
};

/// True for the domains that are summed. A package contains its cores and its graphics ("core",
/// "uncore"), the platform ("psys") contains packages; the memory ("dram") is beside its package.
/// intel-rapl-mmio:0 is the first package once more.
bool is_summed(const std::string& folder, const std::string& name) {
  constexpr std::string_view kZone = "intel-rapl:";
  if (!folder.starts_with(kZone)) return false;
  const bool within = folder.find(':', kZone.size()) != std::string::npos;
  return within ? name == "dram" : name.starts_with("package");
}

}  // namespace

EnergySource energy_of_processors(const std::string& folder) {
  EnergySource source;
  std::error_code problem;
  std::vector<fs::path> zones;
  for (fs::directory_iterator zone(folder, problem), end; !problem && zone != end;
       zone.increment(problem))
    zones.push_back(zone->path());
  if (problem) {
    source.reason = fmt::format("'{}': {}", folder, problem.message());
    return source;
  }
  std::sort(zones.begin(), zones.end());
  std::vector<Domain> domains;
  for (const fs::path& zone : zones) {
    std::string name;
    std::getline(std::ifstream(zone / "name"), name);
    if (!is_summed(zone.filename(), name)) continue;
    Domain domain{.file = NumberFile(zone / "energy_uj")};
    const std::optional<std::uint64_t> now = domain.file.read();
    if (!now) {
      source.reason = fmt::format("'{}': {}", (zone / "energy_uj").string(), domain.file.reason());
      return source;
    }
    domain.last = *now;
    domain.most = NumberFile(zone / "max_energy_range_uj").read().value_or(0);
    if (domain.most < domain.last) {
      source.reason = fmt::format("'{}' is not a range in which {} is",
                                  (zone / "max_energy_range_uj").string(), domain.last);
      return source;
    }
    source.parts += (source.parts.empty() ? "" : ", ") + name;
    domains.push_back(std::move(domain));
  }
  if (domains.empty()) {
    source.reason = fmt::format("'{}' has no counter of a package (intel-rapl)", folder);
    return source;
  }
  source.counter = std::make_unique<Processors>(std::move(domains));
  return source;
}

namespace {

/// The functions of NVML that are used; 0 means success.
struct Nvml {
  explicit Nvml(const char* soname) : library("NVML", {soname}) {
    library.find(init, "nvmlInit_v2");
    library.find(handle_of, "nvmlDeviceGetHandleByUUID");
    library.find(energy, "nvmlDeviceGetTotalEnergyConsumption");
    library.find(text_of, "nvmlErrorString");
  }
  SharedLibrary library;
  int (*init)() = nullptr;
  int (*handle_of)(const char* uuid, void** card) = nullptr;
  int (*energy)(void* card, unsigned long long* millijoules) = nullptr;
  const char* (*text_of)(int status) = nullptr;
};

class Card final : public EnergyCounter {
 public:
  Card(const Nvml& nvml, void* card, unsigned long long now)
      : nvml_(nvml), card_(card), first_(now) {}
  double joules() override {
    unsigned long long now = 0;
    if (nvml_.energy(card_, &now) != 0) return NAN;
    return 1e-3 * static_cast<double>(now - first_);
  }

 private:
  Nvml nvml_;
  void* card_;
  unsigned long long first_;
};

}  // namespace

EnergySource energy_of_card(const std::string& uuid, const char* library) {
  EnergySource source;
  const Nvml nvml(library);
  if (!nvml.library.loaded()) {
    source.reason = nvml.library.reason();
    return source;
  }
  void* card = nullptr;
  unsigned long long now = 0;
  const char* call = "nvmlInit_v2";
  int status = nvml.init();
  if (status == 0) call = "nvmlDeviceGetHandleByUUID", status = nvml.handle_of(uuid.c_str(), &card);
  if (status == 0) call = "nvmlDeviceGetTotalEnergyConsumption", status = nvml.energy(card, &now);
  if (status != 0) {
    source.reason = fmt::format("NVML: {} of {}: {}", call, uuid, nvml.text_of(status));
    return source;
  }
  source.parts = uuid;
  source.counter = std::make_unique<Card>(nvml, card, now);
  return source;
}

}  // namespace choir
