#include "choir/parallel/pipeline/schedule.hpp"

#include <algorithm>
#include <array>
#include <tuple>

#include "choir/core/error.hpp"

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

/// Forwards run `warm_up` micro-batches ahead of backwards; then both alternate. GPipe, 1F1B and
/// ZB-H1 differ in `warm_up`, and in ZB-H1 weight gradients follow `delay` micro-batches after
/// input gradients.
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

/// Stage i delays W by i micro-batches: a stage that started late has less idle time to fill, and
/// every stage holds the p activations that the first one holds in 1F1B.
ActionList zb_h1(const PipelineShape& shape, int stage) {
  return staggered(shape.micro_batches, shape.stages - 1 - stage, true, stage);
}

/// The number of forwards of interleaved 1F1B before the first backward, without the limit m v.
int interleaved_warm_up(const PipelineShape& shape, int stage) {
  return 2 * (shape.stages - 1 - stage) + (shape.chunks - 1) * shape.stages;
}

/// The number of forwards in the interleaved order if its last group of p micro-batches were full.
int positions(const PipelineShape& shape) {
  return (shape.micro_batches + shape.stages - 1) / shape.stages * shape.virtual_stages();
}

/// Appends the action at position k of the interleaved order, if there is one.
void add_at(ActionList& list, const PipelineShape& shape, Kind kind, int k) {
  const int p = shape.stages, v = shape.chunks;
  const int chunk = k / p % v, micro_batch = k / (p * v) * p + k % p;
  if (k >= 0 && k < positions(shape) && micro_batch < shape.micro_batches)
    list.push_back({kind, micro_batch, kind == Kind::forward ? chunk : v - 1 - chunk});
}

/// Micro-batches are processed in groups of p: all of a group through chunk 0, then all through
/// chunk 1, and so on; backward begins with the last chunk. An incomplete last group is scheduled
/// as if it were full, and the absent micro-batches are omitted, so the order of the others remains
/// free of deadlocks.
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
  Schedule schedule{.kind = kind, .shape = shape, .exchange = exchange, .actions = {}};
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

namespace {

using Kind = ActionKind;

struct BusyTime {
  int begin = -1, end = -1;  // -1: not done yet
};

/// The timeline if messages take no time.
struct Timeline {
  std::vector<std::vector<int>> begin;      // [stages][actions of the stage]
  std::vector<BusyTime> forward, gradient;  // [virtual stages, micro-batches]
};

struct TimedMessage {
  int instant;  ///< position in both lists
  std::size_t number;
  int from, to;  ///< stages
  Action send, receive;
};

int nominal_duration(Kind kind) {
  return kind == Kind::backward ? 2 : 1;
}

std::size_t at(const PipelineShape& shape, int virtual_stage, int micro_batch) {
  return static_cast<std::size_t>(virtual_stage) * static_cast<std::size_t>(shape.micro_batches) +
         static_cast<std::size_t>(micro_batch);
}

/// The time at which the input of a computation is available; -1: not known yet.
int ready_time(const PipelineShape& shape, const Timeline& line, int u, const Action& a) {
  if (a.kind == Kind::forward)
    return u == 0 ? 0 : line.forward[at(shape, u - 1, a.micro_batch)].end;
  if (a.kind != Kind::backward_weight && u + 1 < shape.virtual_stages())
    return line.gradient[at(shape, u + 1, a.micro_batch)].end;
  return 0;  // its own forward or B comes earlier in the same list
}

/// Every stage works through its list as soon as inputs are available.
Timeline nominal_timeline(const Schedule& order) {
  const PipelineShape& shape = order.shape;
  const std::vector<BusyTime> unknown(at(shape, shape.virtual_stages(), 0));
  Timeline line{std::vector<std::vector<int>>(order.actions.size()), unknown, unknown};
  std::vector<int> now(order.actions.size(), 0);
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t s = 0; s < order.actions.size(); ++s) {
      const ActionList& list = order.actions[s];
      for (std::vector<int>& begin = line.begin[s]; begin.size() < list.size(); progress = true) {
        const Action& a = list[begin.size()];
        const int u = shape.virtual_stage(static_cast<int>(s), a.chunk);
        const int ready = ready_time(shape, line, u, a);
        if (ready < 0) break;
        begin.push_back(std::max(now[s], ready));
        now[s] = begin.back() + nominal_duration(a.kind);
        if (a.kind != Kind::backward_weight)
          (a.kind == Kind::forward ? line.forward : line.gradient)[at(shape, u, a.micro_batch)] = {
              begin.back(), now[s]};
      }
    }
  }
  for (std::size_t s = 0; s < order.actions.size(); ++s)
    if (line.begin[s].size() < order.actions[s].size())
      throw Error(ExitCode::other,
                  fmt::format("stage {} waits forever for the input of its {}", s,
                              describe(order.actions[s][line.begin[s].size()])),
                  "the compute order of this schedule contradicts itself");
  return line;
}

/// The last instant at or before `t` at which the stage is not in the middle of a computation.
int last_gap(const ActionList& list, const std::vector<int>& begin, int t) {
  const auto after = std::lower_bound(begin.begin(), begin.end(), t);
  if (after == begin.begin()) return t;
  const auto last = static_cast<std::size_t>(after - begin.begin()) - 1;
  return begin[last] + nominal_duration(list[last].kind) > t ? begin[last] : t;
}

/// The latest possible instant, so that a stage does not wait early for something that it needs
/// only after its next computation.
int instant_of(const Schedule& order, const Timeline& line, const TimedMessage& message,
               int produced, int consumed) {
  if (order.exchange == Exchange::overlapped) return produced;
  const auto gap = [&](int stage, int t) {
    const auto s = static_cast<std::size_t>(stage);
    return last_gap(order.actions[s], line.begin[s], t);
  };
  for (int t = consumed; t >= produced;) {
    const int earlier = gap(message.to, gap(message.from, t));
    if (earlier == t) return t;
    t = earlier;
  }
  return produced;  // the sender waits for the end of one computation of the receiver
}

/// All activations from virtual stage u to u + 1 and all gradients back, in the global order.
std::vector<TimedMessage> all_messages(const Schedule& order, const Timeline& line) {
  const PipelineShape& shape = order.shape;
  std::vector<TimedMessage> messages;
  const auto add = [&](int from, int to, int micro_batch, Kind send, Kind receive,
                       const std::vector<BusyTime>& done) {
    const int produced = done[at(shape, from, micro_batch)].end;
    const int consumed = done[at(shape, to, micro_batch)].begin;
    TimedMessage message{0,
                         0,
                         from % shape.stages,
                         to % shape.stages,
                         {send, micro_batch, from / shape.stages},
                         {receive, micro_batch, to / shape.stages}};
    CHOIR_CHECK(produced >= 0 && consumed >= 0, "{} of stage {} has no computation at an end",
                describe(message.send), message.from);
    message.instant = instant_of(order, line, message, produced, consumed);
    message.number = message_of(shape, message.from, message.send);
    messages.push_back(message);
  };
  for (int u = 0; u + 1 < shape.virtual_stages(); ++u)
    for (int j = 0; j < shape.micro_batches; ++j) {
      add(u, u + 1, j, Kind::send_activation, Kind::receive_activation, line.forward);
      if (order.kind != ScheduleKind::forward_only)
        add(u + 1, u, j, Kind::send_gradient, Kind::receive_gradient, line.gradient);
    }
  std::sort(messages.begin(), messages.end(), [](const TimedMessage& a, const TimedMessage& b) {
    return std::tie(a.instant, a.number) < std::tie(b.instant, b.number);
  });
  return messages;
}

}  // namespace

int peer_of(const PipelineShape& shape, int stage, const Action& action) {
  const bool to_next =
      action.kind == Kind::send_activation || action.kind == Kind::receive_gradient;
  const int virtual_peer = shape.virtual_stage(stage, action.chunk) + (to_next ? 1 : -1);
  if (virtual_peer < 0 || virtual_peer >= shape.virtual_stages()) return -1;
  return virtual_peer % shape.stages;
}

std::size_t message_of(const PipelineShape& shape, int stage, const Action& action) {
  // A message is identified by the lower of its two virtual stages, its micro-batch and its
  // direction.
  const int u = shape.virtual_stage(stage, action.chunk);
  switch (action.kind) {
    case Kind::send_activation:
      return at(shape, u, action.micro_batch);
    case Kind::receive_activation:
      return at(shape, u - 1, action.micro_batch);
    case Kind::send_gradient:
      return at(shape, shape.virtual_stages() + u - 1, action.micro_batch);
    case Kind::receive_gradient:
      return at(shape, shape.virtual_stages() + u, action.micro_batch);
    default:
      break;
  }
  CHOIR_CHECK(false, "{} is not a message", describe(action));
  return 0;
}

std::size_t message_count(const PipelineShape& shape) {
  return at(shape, 2 * shape.virtual_stages(), 0);
}

int channel_of(const PipelineShape& shape, int stage, const Action& action, int channels) {
  if (channels <= 1) return 0;
  const bool gradient = action.kind == Kind::send_gradient || action.kind == Kind::receive_gradient;
  if (channels == 2) return gradient ? 1 : 0;
  CHOIR_CHECK(channels == 4, "{} channels", channels);
  // A link is named after the stage that sends activations over it.
  const bool own = action.kind == Kind::send_activation || action.kind == Kind::receive_gradient;
  const int link = own ? stage : peer_of(shape, stage, action);
  return (gradient ? 2 : 0) + link % 2;
}

std::size_t end_of_exchange(const Schedule& schedule, int stage, std::size_t first) {
  const ActionList& list = schedule.actions[static_cast<std::size_t>(stage)];
  const auto channel = [&](std::size_t k) {
    return channel_of(schedule.shape, stage, list[k], schedule.channels);
  };
  std::size_t last = first;
  while (list[last].joined && channel(last + 1) == channel(first)) ++last;
  return last + 1;
}

Schedule with_communication(const Schedule& order) {
  const PipelineShape& shape = order.shape;
  if (shape.stages == 1) return order;  // chunks of one stage hand over in memory
  const Timeline line = nominal_timeline(order);
  Schedule whole{order.kind, shape, order.exchange, std::vector<ActionList>(order.actions.size()),
                 order.channels};
  std::vector<std::size_t> copied(order.actions.size(), 0);  // computations already in `whole`
  const auto compute_until = [&](std::size_t s, int instant) {
    for (; copied[s] < order.actions[s].size() && line.begin[s][copied[s]] < instant; ++copied[s])
      whole.actions[s].push_back(order.actions[s][copied[s]]);
  };
  const auto communicate = [&](int stage, int instant, const Action& action) {
    const auto s = static_cast<std::size_t>(stage);
    compute_until(s, instant);
    ActionList& list = whole.actions[s];
    if (!list.empty() && is_communication(list.back().kind)) list.back().joined = true;
    list.push_back(action);
  };
  for (const TimedMessage& message : all_messages(order, line)) {
    communicate(message.from, message.instant, message.send);
    communicate(message.to, message.instant, message.receive);
  }
  for (std::size_t s = 0; s < order.actions.size(); ++s)
    whole.actions[s].insert(whole.actions[s].end(),
                            order.actions[s].begin() + static_cast<std::ptrdiff_t>(copied[s]),
                            order.actions[s].end());
  return whole;
}

}  // namespace choir
