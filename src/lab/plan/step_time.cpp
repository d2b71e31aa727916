#include "src/lab/plan/step_time.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include "choir/core/error.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/parallel/pipeline/schedule_simulation.hpp"
#include "src/run/run_setup.hpp"

namespace choir {

template <std::size_t N>
void LogGrid<N>::add(const Point& extents, double value) {
  Point at;
  for (std::size_t d = 0; d < N; ++d) {
    at[d] = std::log(extents[d]);
    axes_[d].push_back(at[d]);
  }
  points_.push_back({at, std::log(value)});
}

template <std::size_t N>
void LogGrid<N>::finish() {
  for (auto& axis : axes_) {
    std::sort(axis.begin(), axis.end());
    axis.erase(std::unique(axis.begin(), axis.end()), axis.end());
  }
}

template <std::size_t N>
double LogGrid<N>::at(const Point& extents) const {
  std::array<std::size_t, N> low{};
  Point share{};
  for (std::size_t d = 0; d < N; ++d) {
    const std::vector<double>& axis = axes_[d];
    const double x = std::clamp(std::log(extents[d]), axis.front(), axis.back());
    while (low[d] + 2 < axis.size() && axis[low[d] + 1] <= x) ++low[d];
    if (axis.size() > 1) share[d] = (x - axis[low[d]]) / (axis[low[d] + 1] - axis[low[d]]);
  }
  double sum = 0;
  for (std::size_t corner = 0; corner < std::size_t{1} << N; ++corner) {
    double weight = 1;
    Point place{};
    for (std::size_t d = 0; d < N; ++d) {
      const bool upper = (corner >> d & 1) != 0;
      weight *= upper ? share[d] : 1 - share[d];
      place[d] = axes_[d][std::min(low[d] + (upper ? 1 : 0), axes_[d].size() - 1)];
    }
    if (weight > 0) sum += weight * nearest(place);
  }
  return std::exp(sum);
}

template <std::size_t N>
double LogGrid<N>::nearest(const Point& place) const {
  double best = std::numeric_limits<double>::infinity(), value = 0;
  for (const Known& known : points_) {
    double distance = 0;
    for (std::size_t d = 0; d < N; ++d)
      distance += (known.at[d] - place[d]) * (known.at[d] - place[d]);
    if (distance < best) best = distance, value = known.value;
  }
  return value;
}

template class LogGrid<1>;
template class LogGrid<2>;
template class LogGrid<3>;

namespace {

/// The share of a buffer that a rank in a ring of n ranks sends.
double ring_factor(CallKind kind, int n) {
  if (kind == CallKind::message) return 1;
  return (kind == CallKind::all_reduce ? 2.0 : 1.0) * (n - 1) / n;
}

double flops_of(const ProductTime& row) {
  return 2 * static_cast<double>(row.m) * static_cast<double>(row.n) * static_cast<double>(row.k);
}

int form(bool first, bool second) {
  return (first ? 2 : 0) + (second ? 1 : 0);
}

/// The grid of this form, else of the form that differs in the second flag, else of any form.
template <class Grids>
const typename Grids::mapped_type& like(const Grids& grids, DType dtype, int wanted) {
  for (const int other : {wanted, wanted ^ 1, wanted ^ 2, wanted ^ 3})
    if (const auto found = grids.find({dtype, other}); found != grids.end()) return found->second;
  CHOIR_CHECK(false, "nothing was measured in {}", name_of(dtype));
}

}  // namespace

MachineRates::MachineRates(const Calibration& c) : calibration_(c) {
  for (const ProductTime& row : c.products)
    products_[{row.dtype, form(row.transpose_a, row.transpose_b)}].add(
        {static_cast<double>(row.m), static_cast<double>(row.n), static_cast<double>(row.k)},
        flops_of(row) / row.seconds);
  for (const AttentionTime& row : c.attention)
    attention_[{row.dtype, form(row.backward, row.causal)}].add(
        {static_cast<double>(row.tokens), static_cast<double>(row.head_width)},
        row.flops_per_second);
  for (const UpdateTime& row : c.updates)
    updates_[row.precision].add({row.bytes}, row.bytes / row.seconds);
  for (auto& [key, grid] : products_) grid.finish();
  for (auto& [key, grid] : attention_) grid.finish();
  for (auto& [key, grid] : updates_) grid.finish();
}

double MachineRates::product(const ProductWork& work) const {
  const auto m = static_cast<double>(work.m), n = static_cast<double>(work.n),
             k = static_cast<double>(work.k);
  if (m * n * k == 0) return 0;
  const auto& rates = like(products_, work.in, form(work.transpose_a, work.transpose_b));
  return 2 * static_cast<double>(work.batch) * m * n * k / rates.at({m, n, k});
}

double MachineRates::attention(const AttentionWork& work) const {
  const auto& rates = like(attention_, work.dtype, form(work.backward, work.causal));
  return work.flops /
         rates.at({static_cast<double>(work.keys), static_cast<double>(work.head_width)});
}

double MachineRates::update(std::string_view precision, double bytes) const {
  const auto found = updates_.find(std::string(precision));
  return found == updates_.end() || bytes <= 0 ? 0 : bytes / found->second.at({bytes});
}

double MachineRates::call_inside(bool across, bool window, CallKind kind, int ranks,
                                 double bytes) const {
  std::vector<const CallTime*> rows;
  const auto collect = [&](bool in_window) {
    for (const CallTime& row : calibration_.calls)
      if (row.across == across && row.kind == kind && row.window == in_window) rows.push_back(&row);
  };
  collect(window);
  if (rows.empty()) collect(!window);
  CHOIR_CHECK(!rows.empty(), "{} has no times of {} {}", calibration_.name,
              across ? "network" : "node", static_cast<int>(kind));
  // The rows of the nearest number of ranks, by size.
  const auto distance = [&](const CallTime* row) {
    return std::abs(std::log(static_cast<double>(row->ranks) / ranks));
  };
  const CallTime& like = **std::min_element(
      rows.begin(), rows.end(),
      [&](const CallTime* a, const CallTime* b) { return distance(a) < distance(b); });
  std::erase_if(rows, [&](const CallTime* row) { return row->ranks != like.ranks; });
  std::sort(rows.begin(), rows.end(),
            [](const CallTime* a, const CallTime* b) { return a->bytes < b->bytes; });
  const double least = rows.front()->seconds;
  double here = least;
  if (bytes > rows.back()->bytes) {
    here = least + (rows.back()->seconds - least) * bytes / rows.back()->bytes;
  } else if (bytes > rows.front()->bytes) {
    std::size_t i = 1;
    while (rows[i]->bytes < bytes) ++i;
    const CallTime &a = *rows[i - 1], &b = *rows[i];
    const double share = std::log(bytes / a.bytes) / std::log(b.bytes / a.bytes);
    here = std::exp((1 - share) * std::log(a.seconds) + share * std::log(b.seconds));
  }
  return least * std::log2(ranks) / std::log2(like.ranks) +
         std::max(0.0, here - least) * ring_factor(kind, ranks) / ring_factor(kind, like.ranks);
}

double MachineRates::call(const CallGroup& group, const CallWork& call) const {
  if (group.ranks == 1) return 0;
  const auto bytes = static_cast<double>(call.bytes);
  const auto one = [&](bool across, CallKind kind, int ranks, double size) {
    return call_inside(across, call.window, kind, ranks, size);
  };
  if (group.nodes == 1) return one(false, call.kind, group.ranks, bytes);
  const int inside = group.ranks / group.nodes;
  const bool whole = call.kind == CallKind::all_to_all || call.kind == CallKind::message;
  if (inside <= 1 || whole) return one(true, call.kind, whole ? 2 : group.nodes, bytes);
  double seconds = one(true, call.kind, group.nodes, bytes / inside);
  if (call.kind != CallKind::all_gather)
    seconds += one(false, CallKind::reduce_scatter, inside, bytes);
  if (call.kind != CallKind::reduce_scatter)
    seconds += one(false, CallKind::all_gather, inside, bytes);
  return seconds;
}

double MachineRates::hidden_share(bool across) const {
  for (const Overlap& overlap : calibration_.overlaps)
    if (overlap.across == across) return overlap.hidden;
  return 0;
}

const StreamTimes& MachineRates::streams(std::string_view precision) const {
  const auto& all = calibration_.streams;
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& s) { return s.precision == precision; });
  CHOIR_CHECK(found != all.end(), "{} does not know {}", calibration_.name, precision);
  return *found;
}

double MachineRates::waiting(std::string_view precision, const Layout& layout) const {
  double most = 1;
  for (const WaitFactor& wait : calibration_.waits)
    if (wait.precision == precision && layout.size(wait.axis) > 1)
      most = std::max(most, wait.factor);
  return most;
}

PlaceTime MachineRates::parts(const PlaceWork& work) const {
  PlaceTime time{.bytes = work.other_bytes, .flops = work.other_flops};
  for (const auto& [done, count] : work.products)
    time.products += static_cast<double>(count) * product(done);
  for (const auto& [done, count] : work.attention)
    time.attention += static_cast<double>(count) * attention(done);
  return time;
}

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
        streams_(rates_.streams(name_of(deck.train.precision))),
        waiting_(rates_.waiting(name_of(deck.train.precision), layout)),
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
    const Simulation free = with_channels(0, costs);
    add_links(costs);
    const Simulation sent = simulate(*schedule_, costs);
    const std::size_t busiest = static_cast<std::size_t>(
        std::max_element(free.busy.begin(), free.busy.end()) - free.busy.begin());
    fill_stage(static_cast<int>(busiest));
    time_.idle = free.idle(busiest);
    time_.bubble = free.bubble_fraction();
    expose(Axis::pipeline, sent.makespan - free.makespan);
    time_.rest = streams_.step;
    const double after = finish() + streams_.step;
    time_.seconds = end_of(sent) + after;
    if (schedule_->channels > 1) time_.one_channel = end_of(with_channels(1, costs)) + after;
    time_.calls_most = most_calls();
    return time_;
  }

 private:
  /// The schedule with another number of channels for its messages.
  Simulation with_channels(int channels, const PipelineCosts& costs) const {
    Schedule schedule = *schedule_;
    schedule.channels = channels;
    return simulate(schedule, costs);
  }

  /// The time at which the last stage has its gradients.
  double end_of(const Simulation& simulation) const {
    double last = 0;
    for (std::size_t s = 0; s < simulation.intervals.size(); ++s) {
      double end = 0;
      for (const Interval& interval : simulation.intervals[s]) end = std::max(end, interval.end);
      const auto stage = static_cast<int>(s);
      last = std::max(last,
                      end + remainder(stage) + worst(stage, {.part = WorkPart::gradients}).total());
    }
    return last;
  }

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
      visit.compute = rates_.update(name_of(deck_.train.precision), work.other_bytes);
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

std::string step_duration(double seconds) {
  return seconds < 1 ? fmt::format("{:.1f} ms", 1e3 * seconds) : fmt::format("{:.2f} s", seconds);
}

std::string to_string(const StepTime& time) {
  std::vector<std::string> parts{
      fmt::format("forward and backward {}", step_duration(time.compute)),
      fmt::format("update {}", step_duration(time.update))};
  for (std::size_t a = 0; a < kAxes; ++a)
    if (time.exposed[a] > 0)
      parts.push_back(fmt::format("{} exposed {}", short_name(static_cast<Axis>(a)),
                                  step_duration(time.exposed[a])));
  if (time.hidden > 0) parts.push_back("calls hidden " + step_duration(time.hidden));
  if (time.idle > 0) parts.push_back("idle " + step_duration(time.idle));
  if (time.one_channel > 0)
    parts.push_back(fmt::format("{} if all messages of the pipeline shared one communicator",
                                step_duration(time.one_channel)));
  return fmt::format("{}: {}", step_duration(time.seconds), join(parts, ", "));
}

}  // namespace choir
