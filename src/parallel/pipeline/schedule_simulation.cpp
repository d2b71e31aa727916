#include "src/parallel/pipeline/schedule_simulation.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "choir/core/error.hpp"
#include "choir/parallel/pipeline/schedule.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

using Kind = ActionKind;

struct InFlight {
  double sent = -1, wanted = -1;  ///< posted by the sender, by a blocking receiver; -1: not yet
  double begin = -1, end = -1;    ///< on the link
  double taken = -1;              ///< end of the receiver's exchange on a channel
};

/// An exchange of a stage on one of its channels.
struct Transfer {
  std::size_t first = 0, last = 0;  ///< actions [first, last)
  double posted = 0;
  double begin = -1, end = -1;  ///< -1: not yet
};

/// The exchanges of a stage on a channel; `ended` of them have ended, and the next one may have
/// begun.
struct Channel {
  std::vector<Transfer> transfers;
  std::size_t ended = 0;
};

struct Stage {
  std::size_t next = 0;  ///< first unfinished action
  bool posted = false;   ///< the messages joined to it have been posted
  double now = 0;
};

class Simulator {
 public:
  Simulator(const Schedule& schedule, const PipelineCosts& costs)
      : schedule_(schedule),
        shape_(schedule.shape),
        costs_(costs),
        stages_(schedule.actions.size()),
        messages_(message_count(schedule.shape)),
        lanes_(serial() ? static_cast<std::size_t>(schedule.channels) : 1),
        channels_(stages_.size() * lanes_),
        wire_free_(stages_.size() * stages_.size() * lanes_, 0) {
    for (const ActionList& list : schedule.actions) result_.intervals.emplace_back(list.size());
    result_.busy.assign(stages_.size(), 0);
  }

  Simulation run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t s = 0; s < stages_.size(); ++s)
        while (advance(s)) progress = true;
    }
    for (std::size_t s = 0; s < stages_.size(); ++s)
      if (stages_[s].next < schedule_.actions[s].size()) refuse_deadlock();
    finish();
    return std::move(result_);
  }

 private:
  const Action& action(std::size_t s, std::size_t k) const { return schedule_.actions[s][k]; }
  InFlight& message(std::size_t s, const Action& a) {
    return messages_[message_of(shape_, static_cast<int>(s), a)];
  }
  bool has_message(Kind kind, std::size_t s, int chunk) const {
    return shape_.stages > 1 && peer_of(shape_, static_cast<int>(s), {kind, 0, chunk}) >= 0;
  }

  double duration(std::size_t s, const Action& a) const {
    const int u = shape_.virtual_stage(static_cast<int>(s), a.chunk);
    const ChunkCost& cost = costs_.chunks[static_cast<std::size_t>(u)];
    switch (a.kind) {
      case Kind::forward:
        return cost.forward;
      case Kind::backward:
        return cost.backward;
      case Kind::backward_input:
        return cost.backward_input;
      default:
        return cost.backward_weight;
    }
  }

  /// Performs one action or one exchange of the stage; returns false if it has to wait or is at its
  /// end.
  bool advance(std::size_t s) {
    const Stage& stage = stages_[s];
    if (stage.next == schedule_.actions[s].size()) return false;
    return is_communication(action(s, stage.next).kind) ? communicate(s) : compute(s);
  }

  bool compute(std::size_t s) {
    Stage& stage = stages_[s];
    const Action& a = action(s, stage.next);
    if (schedule_.exchange == Exchange::overlapped && a.kind != Kind::backward_weight) {
      const Kind input =
          a.kind == Kind::forward ? Kind::receive_activation : Kind::receive_gradient;
      if (has_message(input, s, a.chunk)) {
        const InFlight& m = message(s, {input, a.micro_batch, a.chunk});
        const double arrival = serial() ? m.taken : m.end;
        if (arrival < 0) return false;
        stage.now = std::max(stage.now, arrival);
      }
    }
    Interval& interval = result_.intervals[s][stage.next++];
    interval.begin = stage.now;
    interval.end = stage.now += duration(s, a);
    result_.busy[s] += interval.end - interval.begin;
    return true;
  }

  /// True if each channel performs one exchange after the other.
  bool serial() const {
    return schedule_.exchange == Exchange::overlapped && schedule_.channels > 0;
  }
  std::size_t channel(std::size_t s, const Action& a) const {
    return serial() ? static_cast<std::size_t>(
                          channel_of(shape_, static_cast<int>(s), a, schedule_.channels))
                    : 0;
  }

  /// Posts an exchange on its channel, as the executor does.
  bool post_transfer(std::size_t s, std::size_t end) {
    Stage& stage = stages_[s];
    std::vector<Transfer>& queue =
        channels_[s * lanes_ + channel(s, action(s, stage.next))].transfers;
    if (queue.size() >= kOpenExchanges) {
      const double ended = queue[queue.size() - kOpenExchanges].end;
      if (ended < 0) return false;
      stage.now = std::max(stage.now, ended);
    }
    queue.push_back({.first = stage.next, .last = end, .posted = stage.now});
    stage.next = end;
    settle(s);
    return true;
  }

  /// Begins and ends the exchanges of a stage that can, and those of others that follow from them.
  void settle(std::size_t changed) {
    unsettled_.push_back(changed);
    while (!unsettled_.empty()) {
      const std::size_t s = unsettled_.back();
      unsettled_.pop_back();
      for (std::size_t c = 0; c < lanes_; ++c) {
        Channel& channel = channels_[s * lanes_ + c];
        while (channel.ended < channel.transfers.size() && ended(s, channel)) ++channel.ended;
      }
    }
  }

  /// Returns true if the first exchange of the channel that had not ended has done so. A message
  /// begins when the exchanges of both its ends have begun.
  bool ended(std::size_t s, Channel& channel) {
    Transfer& transfer = channel.transfers[channel.ended];
    if (transfer.begin < 0) {
      transfer.begin = transfer.posted;
      if (channel.ended > 0)
        transfer.begin = std::max(transfer.begin, channel.transfers[channel.ended - 1].end);
      for (std::size_t k = transfer.first; k < transfer.last; ++k) {
        const Action& a = action(s, k);
        InFlight& m = message(s, a);
        (is_send(a.kind) ? m.sent : m.wanted) = transfer.begin;
        if (m.sent < 0 || m.wanted < 0) continue;
        travel(m, s, a);
        unsettled_.push_back(static_cast<std::size_t>(peer_of(shape_, static_cast<int>(s), a)));
      }
    }
    double end = transfer.begin;
    for (std::size_t k = transfer.first; k < transfer.last; ++k) {
      const InFlight& m = message(s, action(s, k));
      if (m.end < 0) return false;
      end = std::max(end, m.end);
    }
    transfer.end = end;
    for (std::size_t k = transfer.first; k < transfer.last; ++k)
      if (!is_send(action(s, k).kind)) message(s, action(s, k)).taken = end;
    return true;
  }

  bool communicate(std::size_t s) {
    Stage& stage = stages_[s];
    const std::size_t end = end_of_exchange(schedule_, static_cast<int>(s), stage.next);
    if (serial()) return post_transfer(s, end);
    const bool fresh = !stage.posted;
    if (fresh)
      for (std::size_t k = stage.next; k < end; ++k) post(s, k);
    stage.posted = true;
    double done = stage.now;
    for (std::size_t k = stage.next; k < end; ++k) {
      const Action& a = action(s, k);
      if (!waits_for(a.kind)) continue;
      const InFlight& m = message(s, a);
      if (m.end < 0) return fresh;
      done = std::max(done, m.end);
    }
    stage = {end, false, done};
    return true;
  }

  bool waits_for(Kind kind) const {
    return schedule_.exchange == Exchange::blocking ||
           (schedule_.exchange == Exchange::buffered && !is_send(kind));
  }

  void post(std::size_t s, std::size_t k) {
    const Action& a = action(s, k);
    InFlight& m = message(s, a);
    const bool blocking = schedule_.exchange == Exchange::blocking;
    if (is_send(a.kind)) m.sent = stages_[s].now;
    if (!is_send(a.kind) && blocking) m.wanted = stages_[s].now;
    result_.intervals[s][k].begin = stages_[s].now;
    if (blocking ? m.sent < 0 || m.wanted < 0 : !is_send(a.kind)) return;
    travel(m, s, a);
  }

  /// Sends a message whose ends are ready over the link.
  void travel(InFlight& m, std::size_t s, const Action& a) {
    const int stage = static_cast<int>(s), peer = peer_of(shape_, stage, a);
    const auto from = static_cast<std::size_t>(is_send(a.kind) ? stage : peer);
    const auto to = static_cast<std::size_t>(is_send(a.kind) ? peer : stage);
    const std::size_t lower = std::min(from, to), upper = std::max(from, to);
    const Link& link = costs_.links[upper - lower == 1 ? lower : upper];
    double& wire = wire_free_[(from * stages_.size() + to) * lanes_ + channel(s, a)];
    m.begin = std::max({m.sent, m.wanted, wire});
    wire = m.begin + costs_.message_bytes / link.bytes_per_second;
    m.end = wire + link.latency;
  }

  void finish() {
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      for (std::size_t k = 0; k < result_.intervals[s].size(); ++k) {
        const Action& a = action(s, k);
        Interval& interval = result_.intervals[s][k];
        if (!is_communication(a.kind)) continue;
        const bool waits = schedule_.exchange != Exchange::buffered || !is_send(a.kind);
        interval.end = waits ? std::max(interval.begin, message(s, a).end) : interval.begin;
        if (schedule_.exchange == Exchange::overlapped) interval.begin = message(s, a).begin;
      }
      for (const Interval& interval : result_.intervals[s])
        result_.makespan = std::max(result_.makespan, interval.end);
    }
    result_.peak_live = peak_live(schedule_);
  }

  [[noreturn]] void refuse_deadlock() {
    std::string who;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      if (stages_[s].next == schedule_.actions[s].size()) continue;
      std::size_t k = stages_[s].next;
      if (stages_[s].posted)  // the first joined action that has not completed
        while (!waits_for(action(s, k).kind) || message(s, action(s, k)).end >= 0) ++k;
      who +=
          fmt::format("{}stage {} waits in {}", who.empty() ? "" : "; ", s, describe(action(s, k)));
      if (stages_[s].posted)
        who += fmt::format(" for stage {}", peer_of(shape_, static_cast<int>(s), action(s, k)));
    }
    throw Error(ExitCode::other,
                fmt::format("schedule {} deadlocks under {} exchange: {}", name_of(schedule_.kind),
                            name_of(schedule_.exchange), who),
                "join the messages that neighbours exchange, and list messages in the same order "
                "on all stages");
  }

  const Schedule& schedule_;
  const PipelineShape& shape_;
  const PipelineCosts& costs_;
  std::vector<Stage> stages_;
  std::vector<InFlight> messages_;
  std::size_t lanes_;                   // channels of a stage, or 1
  std::vector<Channel> channels_;       // [stages, lanes]
  std::vector<std::size_t> unsettled_;  // stages
  std::vector<double> wire_free_;       // [from, to, lanes]
  Simulation result_;
};

void check_costs(const Schedule& schedule, const PipelineCosts& costs) {
  const PipelineShape& shape = schedule.shape;
  const auto expect_size = [](const char* what, std::size_t given, int needed) {
    if (given != static_cast<std::size_t>(needed))
      throw Error(ExitCode::other, fmt::format("pipeline costs: {} {} for {}", given, what, needed),
                  "give one for each");
  };
  expect_size("chunk costs", costs.chunks.size(), shape.virtual_stages());
  expect_size("links", costs.links.size(), shape.stages);
  const auto expect_time = [](const char* what, double value) {
    if (!(value >= 0 && std::isfinite(value)))
      throw Error(ExitCode::other, fmt::format("pipeline costs: {} of {}", what, value),
                  "give a finite number that is not negative");
  };
  for (const ChunkCost& c : costs.chunks)
    for (const double value : {c.forward, c.backward, c.backward_input, c.backward_weight})
      expect_time("chunk duration", value);
  for (const Link& link : costs.links) {
    expect_time("latency", link.latency);
    if (!(link.bytes_per_second > 0))
      throw Error(ExitCode::other,
                  fmt::format("pipeline costs: bandwidth of {}", link.bytes_per_second),
                  "give bytes per second above 0, or infinity for a free link");
  }
  expect_time("message bytes", costs.message_bytes);
}

}  // namespace

PipelineCosts uniform_costs(const PipelineShape& shape, const ChunkCost& chunk, const Link& link,
                            double message_bytes) {
  return {.chunks = std::vector(static_cast<std::size_t>(shape.virtual_stages()), chunk),
          .links = std::vector(static_cast<std::size_t>(shape.stages), link),
          .message_bytes = message_bytes};
}

double Simulation::bubble_fraction() const {
  const double total = makespan * static_cast<double>(busy.size());
  return total > 0 ? 1 - std::accumulate(busy.begin(), busy.end(), 0.0) / total : 0;
}

Simulation simulate(const Schedule& schedule, const PipelineCosts& costs) {
  check_costs(schedule, costs);
  return Simulator(schedule, costs).run();
}

std::vector<int> peak_live(const Schedule& schedule) {
  std::vector<int> peaks;
  for (const ActionList& list : schedule.actions) {
    int live = 0, peak = 0;
    if (schedule.kind == ScheduleKind::forward_only) {
      peaks.push_back(0);
      continue;
    }
    for (const Action& a : list) {
      if (a.kind == Kind::forward) peak = std::max(peak, ++live);
      if (a.kind == Kind::backward || a.kind == Kind::backward_weight) --live;
    }
    peaks.push_back(peak);
  }
  return peaks;
}

namespace {

std::string label_of(const Schedule& schedule, const Action& a) {
  const char letter = a.kind == ActionKind::forward           ? 'F'
                      : a.kind == ActionKind::backward_weight ? 'W'
                                                              : 'B';
  std::string label = fmt::format("{}{}", letter, a.micro_batch);
  if (schedule.shape.chunks > 1) label += static_cast<char>('a' + a.chunk % 26);
  return label;
}

/// Calls body(stage, action, its interval) for every computation.
template <class Body>
void each_computation(const Schedule& schedule, const Simulation& simulation, Body&& body) {
  for (std::size_t s = 0; s < schedule.actions.size(); ++s)
    for (std::size_t k = 0; k < schedule.actions[s].size(); ++k)
      if (const Action& a = schedule.actions[s][k]; !is_communication(a.kind))
        body(s, a, simulation.intervals[s][k]);
}

}  // namespace

std::string draw(const Schedule& schedule, const Simulation& simulation, int width) {
  CHOIR_CHECK(simulation.intervals.size() == schedule.actions.size() && width > 0,
              "{} timelines for {} stages, {} columns", simulation.intervals.size(),
              schedule.actions.size(), width);
  double shortest = std::numeric_limits<double>::infinity();
  std::size_t longest_label = 0;
  each_computation(schedule, simulation, [&](std::size_t, const Action& a, const Interval& t) {
    if (t.end > t.begin) shortest = std::min(shortest, t.end - t.begin);
    longest_label = std::max(longest_label, label_of(schedule, a).size());
  });
  // Columns per unit of time.
  double scale = static_cast<double>(longest_label + 1) / shortest;
  if (simulation.makespan * scale > width) scale = width / simulation.makespan;
  const auto column = [&](double t) { return static_cast<std::size_t>(std::lround(t * scale)); };
  std::vector<std::string> rows(schedule.actions.size(),
                                std::string(column(simulation.makespan), '.'));
  each_computation(schedule, simulation, [&](std::size_t s, const Action& a, const Interval& t) {
    const std::size_t begin = column(t.begin), room = column(t.end) - begin;
    std::string label = label_of(schedule, a);
    if (label.size() > room) label.resize(std::min<std::size_t>(room, 1));
    if (room > longest_label + 1) label.resize(room, '-');
    label.resize(room, ' ');
    rows[s].replace(begin, room, label);
  });
  std::string text;
  const std::size_t digits = std::to_string(rows.size() - 1).size();
  for (std::size_t s = 0; s < rows.size(); ++s)
    text += fmt::format("{:>{}} {}\n", s, digits, rows[s]);
  std::vector<std::string> live;
  for (const int peak : simulation.peak_live) live.push_back(std::to_string(peak));
  return text + fmt::format("makespan {:.4g}, bubble {:.1f} %, live activations {}\n",
                            simulation.makespan, 100 * simulation.bubble_fraction(),
                            join(live, " "));
}

}  // namespace choir
