#include "src/core/contention.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "src/core/quantities.hpp"
#include "src/core/stats.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

/// Seconds that each thread of this process was ready to run while no core was free.
std::map<std::string, double> waited_by_thread(const std::string& root) {
  std::map<std::string, double> waited;
  std::error_code failed;
  for (const auto& thread : std::filesystem::directory_iterator(root + "/proc/self/task", failed)) {
    std::ifstream file(thread.path() / "schedstat");
    double ran = 0, waits = 0;  // nanoseconds
    if (file >> ran >> waits) waited[thread.path().filename().string()] = 1e-9 * waits;
  }
  return waited;
}

/// Time that the hypervisor gave to other machines, and all time, in ticks of all cores.
std::pair<double, double> stolen_and_all(const std::string& root) {
  std::ifstream file(root + "/proc/stat");
  std::string word;
  file >> word;
  constexpr int kStolen = 7, kFields = 8;  // user nice system idle iowait irq softirq steal
  double stolen = 0, all = 0, ticks = 0;
  for (int field = 0; field < kFields && file >> ticks; ++field) {
    all += ticks;
    if (field == kStolen) stolen = ticks;
  }
  return {stolen, all};
}

}  // namespace

ContentionMeter::ContentionMeter(std::string root)
    : root_(std::move(root)), began_(now_seconds()), waited_(waited_by_thread(root_)) {
  std::tie(stolen_, ticks_) = stolen_and_all(root_);
}

double ContentionMeter::waited(double seconds) const {
  const double wall = seconds > 0 ? seconds : now_seconds() - began_;
  double most = 0;
  for (const auto& [thread, now] : waited_by_thread(root_)) {
    const auto before = waited_.find(thread);
    most = std::max(most, now - (before == waited_.end() ? 0 : before->second));
  }
  return wall > 0 ? std::clamp(most / wall, 0.0, 1.0) : 0;
}

double ContentionMeter::stolen() const {
  const auto [stolen, ticks] = stolen_and_all(root_);
  return ticks > ticks_ ? (stolen - stolen_) / (ticks - ticks_) : 0;
}

double spread_of(const std::vector<std::vector<double>>& repeated) {
  std::vector<double> spreads;
  for (const std::vector<double>& rounds : repeated) {
    if (rounds.size() < 2) continue;
    const auto [least, most] = std::ranges::minmax(rounds);
    spreads.push_back((most - least) / least);
  }
  return spreads.empty() ? 0 : median_of(spreads);
}

std::string noise_text(double waited, double stolen, double spread) {
  constexpr double kMostWaited = 0.05, kMostStolen = 0.03, kMostSpread = 0.3;
  std::vector<std::string> reasons;
  if (waited > kMostWaited)
    reasons.push_back(fmt::format(
        "a rank waited for a core, which other work had, for {:.0f} % of the time", 100 * waited));
  if (stolen > kMostStolen)
    reasons.push_back(
        fmt::format("other virtual machines had the cores for {:.0f} % of it", 100 * stolen));
  if (spread > kMostSpread)
    reasons.push_back(
        fmt::format("half of the repeated products differ by {:.0f} % or more", 100 * spread));
  return join(reasons, "; ");
}

}  // namespace choir
