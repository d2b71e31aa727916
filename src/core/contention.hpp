#pragma once
// The noise of a measurement: how much other work had the cores meanwhile, by the accounts of the
// scheduler and the hypervisor, and how much repeated measurements differ. Calibrations and benches
// use the same limits.

#include <map>
#include <string>
#include <vector>

namespace choir {

/// Measures from its construction on how much other work had the cores that this process wanted.
/// Local.
class ContentionMeter {
 public:
  /// `root` is prepended to /proc.
  explicit ContentionMeter(std::string root = "");
  /// The part of the time in which the thread that waited most was ready to run and no core was
  /// free; 0 if the system does not say. `seconds` replaces the time since the construction.
  double waited(double seconds = 0) const;
  /// The part of the time of all cores that the hypervisor gave to other virtual machines.
  double stolen() const;

 private:
  std::string root_;
  double began_, stolen_ = 0, ticks_ = 0;
  std::map<std::string, double> waited_;  // by thread
};

/// The median over all measurements of (largest - smallest) / smallest of its rounds; 0 without
/// several rounds. Pure.
double spread_of(const std::vector<std::vector<double>>& repeated);

/// The reasons for which measurements mean little, separated by semicolons: "" if nothing disturbed
/// them. The limits are the same for calibrations and benches. Pure.
std::string noise_text(double waited, double stolen, double spread);

}  // namespace choir
