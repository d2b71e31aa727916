#pragma once
// Helpers shared by the tests of pipeline schedules: every small schedule there is, and short
// forms.
#include <fmt/format.h>

#include "choir/core/error.hpp"
#include "choir/parallel/pipeline/schedule.hpp"

namespace choir::test {

inline constexpr ScheduleKind kScheduleKinds[] = {ScheduleKind::gpipe, ScheduleKind::one_f_one_b,
                                                  ScheduleKind::interleaved, ScheduleKind::zb_h1};
inline constexpr Exchange kExchanges[] = {Exchange::blocking, Exchange::buffered,
                                          Exchange::overlapped};

/// Calls body(kind, shape) for 1 to 8 stages, 1 to 16 micro-batches and, if the schedule allows
/// several, 1 to 3 chunks.
template <class Body>
void each_shape(Body&& body) {
  for (const ScheduleKind kind : kScheduleKinds)
    for (int p = 1; p <= 8; ++p)
      for (int m = 1; m <= 16; ++m)
        for (int v = 1; v <= (kind == ScheduleKind::interleaved ? 3 : 1); ++v)
          body(kind, PipelineShape{p, m, v});
}

inline std::string name_of_case(ScheduleKind kind, const PipelineShape& shape) {
  return fmt::format("{} p={} m={} v={}", name_of(kind), shape.stages, shape.micro_batches,
                     shape.chunks);
}

/// "F0 >a0 <g0 B0": a computation by its letter, a send by '>', a receive by '<', activation or
/// gradient, micro-batch, and chunk if there are several; joined communication is in braces.
inline std::string short_form(const Schedule& schedule, int stage) {
  constexpr std::string_view kMarks[] = {"F", "B", "B", "W", ">a", "<a", ">g", "<g"};
  std::string text;
  bool inside = false;
  for (const Action& a : schedule.actions[static_cast<std::size_t>(stage)]) {
    if (!text.empty()) text += ' ';
    if (a.joined && !inside) text += '{';
    text += fmt::format("{}{}", kMarks[static_cast<std::size_t>(a.kind)], a.micro_batch);
    if (schedule.shape.chunks > 1) text += fmt::format(".{}", a.chunk);
    if (!a.joined && inside) text += '}';
    inside = a.joined;
  }
  return text;
}

/// The message of the error that `action` throws; "" if it throws none.
template <class Body>
std::string error_of(Body&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what() + std::string(" | ") + error.hint();
  }
  return "";
}

}  // namespace choir::test
