#pragma once
// The energy that devices have used, from the counters of the hardware: RAPL for processors (as
// Linux reports it in /sys/class/powercap) and NVML for cards. A counter covers everything on its
// device, also other programs. Local: src/run/energy_meter.hpp lets one rank read each device.
#include <memory>
#include <string>

namespace choir {

class EnergyCounter {
 public:
  virtual ~EnergyCounter() = default;
  /// Joules since construction; NaN from the first failure on. Does not allocate.
  virtual double joules() = 0;
};

/// A counter, or the reason why there is none.
struct EnergySource {
  bool readable() const { return counter != nullptr; }

  std::unique_ptr<EnergyCounter> counter;
  std::string parts;   ///< the counters that are summed: "package-0, dram"
  std::string reason;  ///< empty if there is a counter
};

/// The places of the counters in Linux and for the loader. Tests pass other places.
inline constexpr const char* kPowercapFolder = "/sys/class/powercap";
inline constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

/// The packages of all processors of this host, and their memory where it has a counter of its own.
/// Linux (since 5.10) lets only root read these counters until an administrator allows more.
/// The counters of RAPL begin again at 0 after some 20 to 60 minutes of full load: joules() must be
/// called more often than that.
EnergySource energy_of_processors(const std::string& folder = kPowercapFolder);

/// The card with this UUID ("GPU-1b2c..."). NVML is loaded while the program runs; cards count
/// since Volta, in steps of some 20 to 100 ms, and parts of a card (MIG) do not.
EnergySource energy_of_card(const std::string& uuid, const char* library = kNvmlLibrary);

}  // namespace choir
