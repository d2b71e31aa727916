#include "src/lab/plan/machine_rates.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "choir/core/error.hpp"

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

double MachineRates::update(const std::string& precision, double bytes) const {
  const auto found = updates_.find(precision);
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

const StreamTimes& MachineRates::streams(const std::string& precision) const {
  const auto& all = calibration_.streams;
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& s) { return s.precision == precision; });
  CHOIR_CHECK(found != all.end(), "{} does not know {}", calibration_.name, precision);
  return *found;
}

double MachineRates::waiting(const std::string& precision, const Layout& layout) const {
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

}  // namespace choir
