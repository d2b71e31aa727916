#pragma once
// Which processor this is and how fast it is clocked, for the provenance of measurements. As the
// system tells it: virtual machines give names and clocks that nobody need believe.
#include <string>
#include <vector>

namespace choir {

/// The processor of one host. Clocks in MHz; 0: the system does not say.
struct CpuModel {
  std::string name;          ///< "Intel(R) Xeon(R) Platinum 8480+"; "" where it has none
  double low = 0, high = 0;  ///< of its hardware threads at this moment
  double most = 0;           ///< what it may reach
  std::string governor;      ///< of the clock, "performance"
};

/// Name and clocks of this moment from the text of /proc/cpuinfo: of x86 "model name" and "cpu
/// MHz", of POWER "cpu" and "clock"; Arm has neither, and gives implementer and part.
CpuModel parse_cpuinfo(const std::string& text);
/// What /proc/cpuinfo says of this host, and /sys/devices/system/cpu/cpu0/cpufreq if there is one.
CpuModel cpu_model();

/// Clocks of all hosts in words, "2400 to 3500 MHz then, at most 3800 MHz, governor performance";
/// "" where none is known.
std::string describe_clocks(const std::vector<CpuModel>& hosts);

}  // namespace choir
