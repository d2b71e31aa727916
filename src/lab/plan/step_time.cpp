#include "src/lab/plan/step_time.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>

#include "choir/core/error.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/parallel/pipeline/schedule_simulation.hpp"
#include "src/run/run_setup.hpp"

namespace choir {
namespace {

/// Times of one visit to a place.
struct Visit {
  double compute = 0, hidden = 0;
  std::array<double, kAxes> exposed{};
  double total() const {
    double sum = compute;
    for (const double part : exposed) sum += part;
    return sum;
  }
};

bool gathers_ahead(WorkPart part, const CallWork& call) {
  return part == WorkPart::forward && call.kind == CallKind::all_gather;
}

/// The share of a place's computation that may hide its calls along an axis.
double cover(WorkPart part, bool data_axis, const CallWork& call) {
  if (!call.started) return 0;
  const bool back = part == WorkPart::backward || part == WorkPart::backward_input ||
                    part == WorkPart::backward_weight;
  if (data_axis) return back || part == WorkPart::update || gathers_ahead(part, call) ? 1 : 0;
  return back ? 1.0 / 3 : 0;
}

class Predictor {
 public:
  Predictor(const Calibration& c, const Deck& deck, const Layout& layout, int ranks_per_node,
            std::int64_t micro_batches, const std::vector<RoleWork>& roles)
      : deck_(deck),
        layout_(layout),
        ranks_per_node_(ranks_per_node),
        roles_(roles),
        rates_(c),
        streams_(rates_.streams(deck.train.precision)),
        waiting_(rates_.waiting(deck.train.precision, layout)),
        schedule_(training_schedule(pipeline_of(deck), layout.size(Axis::pipeline),
                                    static_cast<int>(micro_batches),
                                    c.device == "cuda" ? DeviceKind::cuda : DeviceKind::cpu)) {
    for (const RoleWork& role : roles) {
      auto& visits = visits_.emplace_back();
      for (const auto& [place, work] : role.record->places)
        visits[place] = visit_of(*role.record, place, work);
    }
  }

  StepTime run() {
    const PipelineShape& shape = schedule_->shape;
    PipelineCosts costs = uniform_costs(shape, {});
    for (int v = 0; v < shape.virtual_stages(); ++v)
      costs.chunks[static_cast<std::size_t>(v)] = chunk_cost(v % shape.stages, v / shape.stages);
    const Simulation free = simulate(*schedule_, costs);
    add_links(costs);
    const Simulation sent = simulate(*schedule_, costs);
    std::size_t last = 0, busiest = 0;
    std::vector<double> ends;
    for (std::size_t s = 0; s < sent.intervals.size(); ++s) {
      double end = 0;
      for (const Interval& interval : sent.intervals[s]) end = std::max(end, interval.end);
      ends.push_back(end + remainder(static_cast<int>(s)) +
                     worst(static_cast<int>(s), {.part = WorkPart::gradients}).total());
      if (ends[s] > ends[last]) last = s;
      if (free.busy[s] > free.busy[busiest]) busiest = s;
    }
    fill_stage(static_cast<int>(busiest));
    time_.idle = free.idle(busiest);
    time_.bubble = free.bubble_fraction();
    expose(Axis::pipeline, sent.makespan - free.makespan);
    const double after = ends[last] + finish();
    time_.rest = streams_.step;
    time_.seconds = after + streams_.step;
    time_.calls_most = most_calls();
    return time_;
  }

 private:
  void expose(Axis axis, double seconds) {
    time_.exposed[static_cast<std::size_t>(axis)] += seconds;
  }

  std::size_t axis_of(const CallGroup& group) const {
    for (int a = 0; a < kAxes; ++a)
      if (short_name(static_cast<Axis>(a)) == group.axis) return static_cast<std::size_t>(a);
    return static_cast<std::size_t>(Axis::data);
  }

  Visit visit_of(const WorkRecord& record, const WorkPlace& place, const PlaceWork& work) const {
    Visit visit;
    const auto visits = static_cast<double>(std::max<std::int64_t>(1, work.visits));
    if (place.part == WorkPart::update) {
      visit.compute = rates_.update(deck_.train.precision, work.other_bytes);
    } else {
      const PlaceTime parts = rates_.parts(work);
      visit.compute = (streams_.product_factor * parts.products + parts.attention +
                       streams_.per_byte * parts.bytes + streams_.per_flop * parts.flops) /
                      visits;
    }
    visit.compute *= waiting_;
    double covered = 0;  // computation that already covers calls
    for (const auto& [call, count] : work.calls) {
      const CallGroup& group = record.groups[static_cast<std::size_t>(call.group)];
      const std::size_t axis = axis_of(group);
      const double seconds = rates_.call(group, call) * static_cast<double>(count) / visits;
      const double under =
          visit.compute * cover(place.part, axis == static_cast<std::size_t>(Axis::data), call);
      const double behind = std::clamp(under - covered, 0.0, seconds);
      const double hidden = rates_.hidden_share(group.nodes > 1) * behind;
      covered += behind;
      visit.exposed[axis] += seconds - hidden;
      visit.hidden += hidden;
    }
    return visit;
  }

  /// The longest visit of a place among the roles of this stage; zeros if none has the place. A
  /// place that only the last micro-batch has is taken from there.
  Visit worst(int stage, const WorkPlace& place) const {
    Visit most;
    for (std::size_t r = 0; r < roles_.size(); ++r) {
      if (roles_[r].at[Axis::pipeline] != nearest_stage(stage)) continue;
      auto found = visits_[r].find(place);
      if (found == visits_[r].end() && !place.last)
        found = visits_[r].find({place.part, place.chunk, true});
      if (found != visits_[r].end() && found->second.total() > most.total()) most = found->second;
    }
    return most;
  }

  /// The planned stage that represents this one: itself, or the nearest one before it.
  int nearest_stage(int stage) const {
    int best = -1;
    for (const RoleWork& role : roles_)
      if (role.at[Axis::pipeline] <= stage) best = std::max(best, role.at[Axis::pipeline]);
    return best;
  }

  ChunkCost chunk_cost(int stage, int chunk) const {
    const auto of = [&](WorkPart part) { return worst(stage, {part, chunk, false}).total(); };
    return {.forward = of(WorkPart::forward),
            .backward = of(WorkPart::backward),
            .backward_input = of(WorkPart::backward_input),
            .backward_weight = of(WorkPart::backward_weight)};
  }

  static constexpr std::array kParts{WorkPart::forward, WorkPart::backward,
                                     WorkPart::backward_input, WorkPart::backward_weight};

  /// The additional time of the last micro-batch, which completes the gradients.
  double remainder(int stage) const {
    double more = 0;
    for (int chunk = 0; chunk < schedule_->shape.chunks; ++chunk)
      for (const WorkPart part : kParts)
        more +=
            worst(stage, {part, chunk, true}).total() - worst(stage, {part, chunk, false}).total();
    return more;
  }

  void add_links(PipelineCosts& costs) const {
    const int stages = layout_.size(Axis::pipeline);
    if (stages == 1) return;
    for (const RoleWork& role : roles_)
      for (const auto& [place, work] : role.record->places)
        if (place.part == WorkPart::exchange)
          for (const auto& [call, count] : work.calls)
            costs.message_bytes = std::max(costs.message_bytes, static_cast<double>(call.bytes));
    if (costs.message_bytes == 0) return;
    for (int s = 0; s < stages; ++s) {
      const auto rank = [&](int stage) {
        Coordinates at;
        at[Axis::pipeline] = stage;
        return layout_.rank(at);
      };
      const int other = (s + 1) % stages;
      const bool across = rank(s) / ranks_per_node_ != rank(other) / ranks_per_node_;
      const auto seconds = [&](double bytes) {
        return rates_.call_inside(across, false, CallKind::message, 2, bytes);
      };
      const double latency = seconds(1);
      costs.links[static_cast<std::size_t>(s)] = {
          .latency = latency,
          .bytes_per_second =
              costs.message_bytes / std::max(1e-12, seconds(costs.message_bytes) - latency)};
    }
  }

  void book(const Visit& visit, double times) {
    for (std::size_t a = 0; a < kAxes; ++a) time_.exposed[a] += times * visit.exposed[a];
    time_.hidden += times * visit.hidden;
  }

  void fill_stage(int stage) {
    const double others = schedule_->shape.micro_batches - 1;
    for (int chunk = 0; chunk < schedule_->shape.chunks; ++chunk)
      for (const WorkPart part : kParts) {
        const Visit usual = worst(stage, {part, chunk, false}),
                    last = worst(stage, {part, chunk, true});
        time_.compute += others * usual.compute + last.compute;
        book(usual, others);
        book(last, 1);
      }
    const Visit gradients = worst(stage, {.part = WorkPart::gradients});
    time_.compute += gradients.compute;
    book(gradients, 1);
  }

  /// The work of all ranks after every stage has its gradients.
  double finish() {
    double longest = 0;
    Visit most;
    for (int stage = 0; stage < layout_.size(Axis::pipeline); ++stage) {
      const Visit update = worst(stage, {.part = WorkPart::update}),
                  gather = worst(stage, {.part = WorkPart::gather});
      if (update.total() + gather.total() < longest) continue;
      longest = update.total() + gather.total();
      most = update;
      most.compute += gather.compute, most.hidden += gather.hidden;
      for (std::size_t a = 0; a < kAxes; ++a) most.exposed[a] += gather.exposed[a];
    }
    time_.update = most.compute;
    book(most, 1);
    return longest;
  }

  std::string most_calls() const {
    double longest = 0;
    std::string text;
    for (const RoleWork& role : roles_) {
      std::map<std::pair<std::string, CallWork>, std::int64_t> sums;
      for (const auto& [place, work] : role.record->places)
        for (const auto& [call, count] : work.calls)
          sums[{role.record->groups[static_cast<std::size_t>(call.group)].axis, call}] += count;
      for (const auto& [key, count] : sums) {
        const CallWork& call = key.second;
        const CallGroup& group = role.record->groups[static_cast<std::size_t>(call.group)];
        const double seconds = rates_.call(group, call) * static_cast<double>(count);
        if (seconds <= longest) continue;
        longest = seconds;
        constexpr std::array kNames{"all-reduce", "reduce-scatter", "all-gather", "all-to-all",
                                    "message"};
        text = fmt::format("{} x {} of {} along {}", count,
                           kNames[static_cast<std::size_t>(call.kind)],
                           format_bytes(static_cast<double>(call.bytes)), group.axis);
      }
    }
    return text;
  }

  const Deck& deck_;
  const Layout& layout_;
  int ranks_per_node_;
  const std::vector<RoleWork>& roles_;
  MachineRates rates_;
  const StreamTimes& streams_;
  double waiting_;
  std::shared_ptr<const Schedule> schedule_;
  std::vector<std::map<WorkPlace, Visit>> visits_;  // of each role
  StepTime time_;
};

}  // namespace

double StepTime::exposed_seconds() const {
  double sum = 0;
  for (const double part : exposed) sum += part;
  return sum;
}

StepTime predict_step(const Calibration& calibration, const Deck& deck, const Layout& layout,
                      int ranks_per_node, std::int64_t micro_batches,
                      const std::vector<RoleWork>& roles) {
  return Predictor(calibration, deck, layout, ranks_per_node, micro_batches, roles).run();
}

std::string to_string(const StepTime& time) {
  std::vector<std::string> parts{
      fmt::format("forward and backward {}", format_duration(time.compute)),
      fmt::format("update {}", format_duration(time.update))};
  for (std::size_t a = 0; a < kAxes; ++a)
    if (time.exposed[a] > 0)
      parts.push_back(fmt::format("{} exposed {}", short_name(static_cast<Axis>(a)),
                                  format_duration(time.exposed[a])));
  if (time.hidden > 0) parts.push_back("calls hidden " + format_duration(time.hidden));
  if (time.idle > 0) parts.push_back("idle " + format_duration(time.idle));
  return fmt::format("{}: {}", format_duration(time.seconds), join(parts, ", "));
}

}  // namespace choir
