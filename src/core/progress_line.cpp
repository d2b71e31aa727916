#include "choir/core/progress_line.hpp"

#include "choir/core/clock.hpp"

namespace choir {

ProgressLine::ProgressLine(Logger& log, std::string phase, double interval)
    : log_(log),
      phase_(std::move(phase)),
      interval_(interval),
      began_(now_seconds()),
      said_(began_) {}

void ProgressLine::at(std::int64_t done, std::int64_t total) {
  const double now = now_seconds();
  if (now - said_ < interval_ || done <= 0 || total <= 0) return;
  said_ = now;
  const double share = static_cast<double>(done) / static_cast<double>(total);
  log_.info("{}: {:.0f} %, {} left", phase_, 100 * share,
            format_duration((now - began_) * (1 - share) / share));
}

}  // namespace choir
