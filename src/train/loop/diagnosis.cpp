#include "src/train/loop/diagnosis.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "choir/core/clock.hpp"
#include "choir/train/loop/rank_times.hpp"

namespace choir {
namespace {

constexpr double kSlowData = 0.15;     // of a step
constexpr double kSlowNetwork = 0.25;  // of a step
constexpr double kSlowBetween = 0.15;  // of the wall time
constexpr double kWorthNaming = 0.10;  // of a step: what a slow rank costs the others

/// How many times the median of the others the slowest rank takes; 1 for a single rank.
struct SlowestRank {
  std::size_t rank = 0;
  double ratio = 1, excess = 0;
};

SlowestRank slowest_of(const std::vector<double>& own) {
  if (own.size() < 2) return {};
  const auto most = std::max_element(own.begin(), own.end());
  std::vector<double> others(own.begin(), most);
  others.insert(others.end(), most + 1, own.end());
  const double median = percentile(std::move(others), 0.5);
  return {.rank = static_cast<std::size_t>(most - own.begin()),
          .ratio = median > 0 ? *most / median : 1,
          .excess = *most - median};
}

}  // namespace

std::string diagnosis(const RunTimes& times) {
  const double step = times.phases.mean();
  if (step <= 0) return {};
  const auto share = [&](Phase phase) { return times.phases.mean(phase) / step; };
  const SlowestRank slowest = slowest_of(times.own);
  if (slowest.ratio > RankTimes::kSlow && slowest.excess > kWorthNaming * step)
    return fmt::format(
        "slow rank: rank {} on {} takes {:.2f} times as long as the others ({} more a step, {} of "
        "its time outside forward and backward), and they wait for it",
        slowest.rank, times.hosts[slowest.rank], slowest.ratio, format_duration(slowest.excess),
        format_duration(times.outside[slowest.rank]));
  if (share(Phase::data) > kSlowData)
    return fmt::format(
        "slow data: a step waits {:.0f} % of its time for data; try data.prefetch, data.reader and "
        "`choir bench reader`",
        100 * share(Phase::data));
  if (share(Phase::comm) > kSlowNetwork)
    return fmt::format(
        "slow network: communication takes {:.0f} % of a step, and no rank is slow ({:.2f} times "
        "the others at most); try more work a step (train.grad_accum) or another layout (`choir "
        "plan`)",
        100 * share(Phase::comm), slowest.ratio);
  if (times.between_steps > kSlowBetween)
    return fmt::format(
        "slow between steps: {:.0f} % of the wall time is neither steps nor evaluations nor saves",
        100 * times.between_steps);
  return fmt::format(
      "kernels: forward and backward take {:.0f} % of a step; nothing else stands out",
      100 * (share(Phase::forward) + share(Phase::backward)));
}

}  // namespace choir
