#include "choir/parallel/schedule.hpp"

#include <algorithm>
#include <array>

#include "choir/core/error.hpp"
#include "choir/parallel/schedule_messages.hpp"

namespace choir {
namespace {

using Kind = ActionKind;

void check_shape(ScheduleKind kind, const PipelineShape& shape) {
  const auto at_least_one = [](const char* key, int value) {
    if (value < 1)
      throw DeckError(fmt::format("{}: {} is below 1", key, value), "the nearest legal value is 1");
  };
  at_least_one("parallel.pipeline", shape.stages);
  at_least_one("train.grad_accum", shape.micro_batches);
  at_least_one("parallel.virtual_stages", shape.chunks);
  if (shape.chunks > 1 && kind != ScheduleKind::interleaved && kind != ScheduleKind::forward_only)
    throw DeckError(fmt::format("parallel.virtual_stages: {} with parallel.schedule \"{}\", which "
                                "has one virtual stage per stage",
                                shape.chunks, name_of(kind)),
                    "set parallel.virtual_stages=1 or parallel.schedule=\"interleaved\"");
}

/// Forwards run `warm_up` ahead of backwards; then both alternate. GPipe, 1F1B and ZB-H1 differ in
/// how far, and ZB-H1 lets weight gradients follow `delay` micro-batches behind input gradients.
ActionList staggered(int micro_batches, int warm_up, bool split, int delay) {
  ActionList list;
  const auto add = [&](Kind kind, int micro_batch) {
    if (micro_batch >= 0 && micro_batch < micro_batches) list.push_back({kind, micro_batch, 0});
  };
  for (int k = 0; k < micro_batches + warm_up + delay; ++k) {
    add(Kind::forward, k);
    add(split ? Kind::backward_input : Kind::backward, k - warm_up);
    if (split) add(Kind::backward_weight, k - warm_up - delay);
  }
  return list;
}

ActionList gpipe(const PipelineShape& shape, int) {
  return staggered(shape.micro_batches, shape.micro_batches, false, 0);
}

ActionList one_f_one_b(const PipelineShape& shape, int stage) {
  return staggered(shape.micro_batches, shape.stages - 1 - stage, false, 0);
}

/// Stage i delays W by i micro-batches: a stage that started late has had less idle time to fill,
/// and every stage holds the p activations that the first one holds in 1F1B.
ActionList zb_h1(const PipelineShape& shape, int stage) {
  return staggered(shape.micro_batches, shape.stages - 1 - stage, true, stage);
}

/// Forwards of interleaved 1F1B that precede the first backward, without the limit m v.
int interleaved_warm_up(const PipelineShape& shape, int stage) {
  return 2 * (shape.stages - 1 - stage) + (shape.chunks - 1) * shape.stages;
}

/// Forwards of the interleaved order if its last group of p micro-batches were full.
int positions(const PipelineShape& shape) {
  return (shape.micro_batches + shape.stages - 1) / shape.stages * shape.virtual_stages();
}

/// Appends what stands at position k of the interleaved order, if there is anything.
void add_at(ActionList& list, const PipelineShape& shape, Kind kind, int k) {
  const int p = shape.stages, v = shape.chunks;
  const int chunk = k / p % v, micro_batch = k / (p * v) * p + k % p;
  if (k >= 0 && k < positions(shape) && micro_batch < shape.micro_batches)
    list.push_back({kind, micro_batch, kind == Kind::forward ? chunk : v - 1 - chunk});
}

/// Micro-batches go in groups of p: all of a group through chunk 0, then all through chunk 1 ...;
/// in backward the last chunk comes first. A last group that is not full is scheduled as if it were
/// and the absent micro-batches are left out: the order of the others stays one that cannot
/// deadlock.
ActionList interleaved(const PipelineShape& shape, int stage) {
  const int v = shape.chunks;
  if (v == 1) return one_f_one_b(shape, stage);
  const int all = positions(shape);
  const int warm_up = std::min(interleaved_warm_up(shape, stage), all);
  ActionList list;
  for (int k = 0; k < all + warm_up; ++k) {
    add_at(list, shape, Kind::forward, k);
    add_at(list, shape, Kind::backward, k - warm_up);
  }
  return list;
}

/// The forwards of `interleaved`.
ActionList forward_only(const PipelineShape& shape, int) {
  ActionList list;
  for (int k = 0; k < positions(shape); ++k) add_at(list, shape, Kind::forward, k);
  return list;
}

}  // namespace

std::string_view name_of(ActionKind kind) {
  constexpr std::array<std::string_view, kActionKinds> kNames{
      "forward",         "backward",           "backward_input", "backward_weight",
      "send_activation", "receive_activation", "send_gradient",  "receive_gradient"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string describe(const Action& action) {
  return fmt::format("{} of micro-batch {}, chunk {}", name_of(action.kind), action.micro_batch,
                     action.chunk);
}

std::string_view name_of(ScheduleKind kind) {
  constexpr std::array<std::string_view, 5> kNames{"gpipe", "1f1b", "interleaved", "zb-h1",
                                                   "forward-only"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string_view name_of(Exchange exchange) {
  constexpr std::array<std::string_view, 3> kNames{"blocking", "buffered", "overlapped"};
  return kNames[static_cast<std::size_t>(exchange)];
}

Schedule compute_order(ScheduleKind kind, const PipelineShape& shape, Exchange exchange) {
  check_shape(kind, shape);
  constexpr std::array kGenerators{gpipe, one_f_one_b, interleaved, zb_h1, forward_only};
  Schedule schedule{kind, shape, exchange, {}};
  for (int stage = 0; stage < shape.stages; ++stage)
    schedule.actions.push_back(kGenerators[static_cast<std::size_t>(kind)](shape, stage));
  return schedule;
}

Schedule make_schedule(ScheduleKind kind, const PipelineShape& shape, Exchange exchange) {
  return with_communication(compute_order(kind, shape, exchange));
}

int promised_live(ScheduleKind kind, const PipelineShape& shape, int stage) {
  const int all = shape.micro_batches * shape.chunks;
  switch (kind) {
    case ScheduleKind::gpipe:
      return all;
    case ScheduleKind::zb_h1:
      return std::min(shape.stages, all);
    case ScheduleKind::interleaved:
      if (shape.chunks > 1) return std::min(interleaved_warm_up(shape, stage) + 1, all);
      [[fallthrough]];
    case ScheduleKind::one_f_one_b:
      return std::min(shape.stages - stage, all);
    case ScheduleKind::forward_only:
      return 0;
  }
  return all;
}

}  // namespace choir
