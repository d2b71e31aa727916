#include "choir/train/loop/rank_times.hpp"

#include <algorithm>
#include <cmath>

#include "choir/comm/agreement.hpp"
#include "choir/comm/flight_log.hpp"
#include "choir/core/process.hpp"

namespace choir {

void RankTimes::begin() {
  inside_ = seconds_in_communication();
}

void RankTimes::span(Phase ended, double start, double end) {
  const double inside = seconds_in_communication();
  const double own = std::max(0.0, end - start - (inside - inside_));
  inside_ = inside;
  // Readers agree on every block of data, so a rank that waits for data may wait for a slow rank.
  if (ended == Phase::comm || ended == Phase::data) return;
  step_.all += own;
  if (ended != Phase::forward && ended != Phase::backward) step_.outside += own;
}

void RankTimes::end_step() {
  now_.all += step_.all, now_.outside += step_.outside;
  if (all_steps_ == 0) {
    first_ = step_;
  } else {
    rest_.all += step_.all, rest_.outside += step_.outside;
    squares_ += step_.all * step_.all;
  }
  step_ = {};
  ++steps_;
  ++all_steps_;
}

RankTimes::Own RankTimes::whole_run() const {
  if (all_steps_ < 2) return {first_.all, first_.outside, 0};
  const auto steps = static_cast<double>(all_steps_ - 1);
  const double mean = rest_.all / steps;
  const double variance = steps > 1 ? (squares_ - steps * mean * mean) / (steps - 1) : 0;
  return {mean, rest_.outside / steps, std::sqrt(std::max(0.0, variance))};
}

double percentile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  const double at = part * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return std::lerp(values[low], values[high], at - static_cast<double>(low));
}

RankTimesReport RankTimes::report(Mesh& mesh) {
  Communicator& world = mesh.world();
  all_.assign(static_cast<std::size_t>(world.size()), 0);
  const auto steps = static_cast<double>(std::max<std::int64_t>(1, steps_));
  std::vector<double> outside(all_.size());
  const auto here = static_cast<std::size_t>(world.rank());
  all_[here] = now_.all / steps;
  outside[here] = now_.outside / steps;
  world.all_gather(all_.data(), 1, DType::f64);
  world.all_gather(outside.data(), 1, DType::f64);
  const auto most = std::max_element(all_.begin(), all_.end());
  RankTimesReport report{.steps = steps_,
                         .p10 = percentile(all_, 0.1),
                         .p50 = percentile(all_, 0.5),
                         .p90 = percentile(all_, 0.9),
                         .slowest = *most,
                         .outside = outside[static_cast<std::size_t>(most - all_.begin())],
                         .slowest_rank = static_cast<int>(most - all_.begin())};
  report.slowest_host = host_name();
  broadcast_text(world, report.slowest_host, report.slowest_rank);
  const bool slow = report.slowest > kSlow * report.p50;
  in_a_row_ = !slow ? 0 : suspect_ == report.slowest_rank ? in_a_row_ + 1 : 1;
  suspect_ = slow ? report.slowest_rank : -1;
  report.steady = in_a_row_ >= kSteady;
  now_ = {};
  steps_ = 0;
  return report;
}

std::string to_string(const RankTimesReport& r) {
  return fmt::format(
      "own time per rank and step (without waiting for others, {} steps): p10 {}, p50 {}, p90 {}; "
      "slowest: rank {} on {}, {}, {:.2f} times the median, {} of it outside forward and backward",
      r.steps, format_duration(r.p10), format_duration(r.p50), format_duration(r.p90),
      r.slowest_rank, r.slowest_host, format_duration(r.slowest),
      r.p50 > 0 ? r.slowest / r.p50 : 1.0, format_duration(r.outside));
}

std::string to_json(const RankTimesReport& r, std::int64_t step) {
  return fmt::format(
      "{{\"step\":{},\"compute\":{{\"steps\":{},\"p10\":{:.6g},\"p50\":{:.6g},\"p90\":{:.6g},"
      "\"slowest\":{:.6g},\"outside\":{:.6g},\"slowest_rank\":{},\"slowest_host\":\"{}\","
      "\"steadily_slow\":{}}}}}",
      step, r.steps, r.p10, r.p50, r.p90, r.slowest, r.outside, r.slowest_rank, r.slowest_host,
      r.steady);
}

}  // namespace choir
