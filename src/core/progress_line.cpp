#include "choir/core/progress_line.hpp"

#include "choir/core/clock.hpp"

namespace choir {
namespace {

constexpr double kRenewal = 0.2;  // seconds between two updates on a terminal

}  // namespace

ProgressLine::ProgressLine(Logger& log, std::string phase, double interval)
    : log_(log), phase_(std::move(phase)), interval_(interval) {
  restart();
}

ProgressLine::~ProgressLine() {
  log_.status({});
}

void ProgressLine::restart() {
  began_ = said_ = shown_ = now_seconds();
}

bool ProgressLine::due() const {
  const double now = now_seconds();
  return log_.on_terminal() ? now - shown_ >= kRenewal : now - said_ >= interval_;
}

void ProgressLine::at(std::int64_t done, std::int64_t total, std::int64_t begun,
                      std::string_view more) {
  if (!due() || done <= begun || total <= 0) return;
  const double now = now_seconds();
  const double left =
      (now - began_) * static_cast<double>(total - done) / static_cast<double>(done - begun);
  const std::string text = fmt::format("{}: {:.0f} %, {} left", phase_,
                                       100 * static_cast<double>(done) / static_cast<double>(total),
                                       format_duration(left));
  shown_ = now;
  if (log_.on_terminal()) return log_.status(text + std::string(more));
  said_ = now;
  log_.info("{}", text);
}

}  // namespace choir
