#include "choir/parallel/schedule_messages.hpp"

#include <algorithm>
#include <tuple>

#include "choir/core/error.hpp"

namespace choir {
namespace {

using Kind = ActionKind;

struct Interval {
  int begin = -1, end = -1;  // -1: not done yet
};

/// When everything happens if messages take no time.
struct Timeline {
  std::vector<std::vector<int>> begin;      // [stages][actions of the stage]
  std::vector<Interval> forward, gradient;  // [virtual stages, micro-batches]
};

struct Message {
  int instant;  ///< at which both ends list it
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

/// When the input of a computation is there; -1: not known yet.
int ready_time(const PipelineShape& shape, const Timeline& line, int u, const Action& a) {
  if (a.kind == Kind::forward)
    return u == 0 ? 0 : line.forward[at(shape, u - 1, a.micro_batch)].end;
  if (a.kind != Kind::backward_weight && u + 1 < shape.virtual_stages())
    return line.gradient[at(shape, u + 1, a.micro_batch)].end;
  return 0;  // its own forward or B comes earlier in the same list
}

/// Every stage works through its list as soon as inputs are there.
Timeline nominal_timeline(const Schedule& order) {
  const PipelineShape& shape = order.shape;
  const std::vector<Interval> unknown(at(shape, shape.virtual_stages(), 0));
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
                  fmt::format("stage {} waits for ever for the input of its {}", s,
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

/// Late, so that a stage does not wait for what it needs only after its next computation.
int instant_of(const Schedule& order, const Timeline& line, const Message& message, int produced,
               int consumed) {
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

/// Activations from virtual stage u to u + 1 and gradients back, in the global order.
std::vector<Message> all_messages(const Schedule& order, const Timeline& line) {
  const PipelineShape& shape = order.shape;
  std::vector<Message> messages;
  const auto add = [&](int from, int to, int micro_batch, Kind send, Kind receive,
                       const std::vector<Interval>& done) {
    const int produced = done[at(shape, from, micro_batch)].end;
    const int consumed = done[at(shape, to, micro_batch)].begin;
    Message message{0,
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
  std::sort(messages.begin(), messages.end(), [](const Message& a, const Message& b) {
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
  // A message is known by the lower of its two virtual stages, its micro-batch and its direction.
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
  CHOIR_CHECK(false, "{} is no message", describe(action));
  return 0;
}

std::size_t message_count(const PipelineShape& shape) {
  return at(shape, 2 * shape.virtual_stages(), 0);
}

Schedule with_communication(const Schedule& order) {
  const PipelineShape& shape = order.shape;
  if (shape.stages == 1) return order;  // chunks of one stage hand over in memory
  const Timeline line = nominal_timeline(order);
  Schedule whole{order.kind, shape, order.exchange, std::vector<ActionList>(order.actions.size())};
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
  for (const Message& message : all_messages(order, line)) {
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
