#include "choir/train/watch/rank_times.hpp"

#include <algorithm>
#include <cmath>

#include "choir/comm/flight_recorder.hpp"
#include "choir/comm/gather_text.hpp"
#include "choir/comm/mpi_session.hpp"

namespace choir {

void RankTimes::span(Phase ended, double start, double end) {
  const double inside = seconds_in_communication();
  if (ended == Phase::forward || ended == Phase::backward)
    compute_ += std::max(0.0, end - start - (inside - inside_));
  inside_ = inside;
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
  all_[static_cast<std::size_t>(world.rank())] =
      compute_ / static_cast<double>(std::max<std::int64_t>(1, steps_));
  world.all_gather(all_.data(), 1, DType::f64);
  const auto most = std::max_element(all_.begin(), all_.end());
  RankTimesReport report{.steps = steps_,
                         .p10 = percentile(all_, 0.1),
                         .p50 = percentile(all_, 0.5),
                         .p90 = percentile(all_, 0.9),
                         .slowest = *most,
                         .slowest_rank = static_cast<int>(most - all_.begin())};
  report.slowest_host = host_name();
  broadcast_text(world, report.slowest_host, report.slowest_rank);
  const bool slow = report.slowest > kSlow * report.p50;
  in_a_row_ = !slow ? 0 : suspect_ == report.slowest_rank ? in_a_row_ + 1 : 1;
  suspect_ = slow ? report.slowest_rank : -1;
  report.steady = in_a_row_ >= kSteady;
  compute_ = 0;
  steps_ = 0;
  return report;
}

std::string to_string(const RankTimesReport& r) {
  return fmt::format(
      "compute time per rank and step (forward and backward without waiting, {} steps): p10 {}, "
      "p50 {}, p90 {}; slowest: rank {} on {}, {}, {:.2f} times the median",
      r.steps, format_duration(r.p10), format_duration(r.p50), format_duration(r.p90),
      r.slowest_rank, r.slowest_host, format_duration(r.slowest),
      r.p50 > 0 ? r.slowest / r.p50 : 1.0);
}

std::string to_json(const RankTimesReport& r, std::int64_t step) {
  return fmt::format(
      "{{\"step\":{},\"compute\":{{\"steps\":{},\"p10\":{:.6g},\"p50\":{:.6g},\"p90\":{:.6g},"
      "\"slowest\":{:.6g},\"slowest_rank\":{},\"slowest_host\":\"{}\",\"steadily_slow\":{}}}}}",
      step, r.steps, r.p10, r.p50, r.p90, r.slowest, r.slowest_rank, r.slowest_host, r.steady);
}

}  // namespace choir
