#include "choir/comm/layout.hpp"

#include <algorithm>

#include "choir/core/error.hpp"

namespace choir {
namespace {

constexpr std::array<Axis, kAxes> kAllAxes{Axis::tensor, Axis::context, Axis::data, Axis::pipeline};

std::array<Axis, kAxes> parse_order(std::string_view order) {
  std::array<Axis, kAxes> axes{};
  std::array<bool, kAxes> seen{};
  std::size_t found = 0;
  const auto refuse = [&] {
    throw DeckError(
        fmt::format("parallel.order: \"{}\" is not a permutation of tp, cp, dp, pp", order),
        "the default is \"tp-cp-dp-pp\" (tensor neighbours adjacent, pipeline outermost)");
  };
  for (std::size_t at = 0; at <= order.size();) {
    const std::size_t end = std::min(order.find('-', at), order.size());
    const std::string_view word = order.substr(at, end - at);
    const auto* axis = std::find_if(kAllAxes.begin(), kAllAxes.end(),
                                    [&](Axis a) { return short_name(a) == word; });
    if (axis == kAllAxes.end() || found == kAxes || seen[static_cast<std::size_t>(*axis)]) refuse();
    seen[static_cast<std::size_t>(*axis)] = true;
    axes[found++] = *axis;
    at = end + 1;
  }
  if (found != kAxes) refuse();
  return axes;
}

template <class Visit>
void for_divisors(int n, const Visit& visit) {
  for (int d = 1; d <= n; ++d)
    if (n % d == 0) visit(d);
}

}  // namespace

std::string_view short_name(Axis axis) {
  constexpr std::array<std::string_view, kAxes> kNames{"tp", "cp", "dp", "pp"};
  return kNames[static_cast<std::size_t>(axis)];
}

Layout::Layout(int tensor, int context, int data, int pipeline, std::string_view order)
    : sizes_{tensor, context, data, pipeline}, fastest_first_(parse_order(order)), order_(order) {
  constexpr std::array<const char*, kAxes> kKeys{"tensor", "context", "data", "pipeline"};
  std::int64_t ranks = 1;
  for (std::size_t a = 0; a < kAxes; ++a) {
    if (sizes_[a] < 1)
      throw DeckError(fmt::format("parallel.{}: {} is below 1", kKeys[a], sizes_[a]),
                      "the smallest size of an axis is 1 (not split)");
    ranks *= sizes_[a];
    if (ranks > (1 << 30)) throw DeckError("parallel: the layout has more than 2^30 ranks");
  }
}

int Layout::ranks() const {
  int ranks = 1;
  for (const int size : sizes_) ranks *= size;
  return ranks;
}

Coordinates Layout::coordinates(int rank) const {
  CHOIR_CHECK(rank >= 0 && rank < ranks(), "rank {} of {}", rank, ranks());
  Coordinates at;
  for (const Axis axis : fastest_first_) {
    at[axis] = rank % size(axis);
    rank /= size(axis);
  }
  return at;
}

int Layout::rank(const Coordinates& at) const {
  int rank = 0, stride = 1;
  for (const Axis axis : fastest_first_) {
    CHOIR_CHECK(at[axis] >= 0 && at[axis] < size(axis), "{}={} of {}", short_name(axis), at[axis],
                size(axis));
    rank += at[axis] * stride;
    stride *= size(axis);
  }
  return rank;
}

std::vector<int> Layout::group(int rank_in, const std::vector<Axis>& axes) const {
  std::vector<int> members{rank_in};
  for (const Axis axis : axes) {
    std::vector<int> wider;
    for (const int member : members) {
      Coordinates at = coordinates(member);
      for (at[axis] = 0; at[axis] < size(axis); ++at[axis]) wider.push_back(rank(at));
    }
    members = std::move(wider);
  }
  std::sort(members.begin(), members.end());
  members.erase(std::unique(members.begin(), members.end()), members.end());  // an axis may be
                                                                              // given twice
  return members;
}

std::vector<std::vector<int>> Layout::groups(const std::vector<Axis>& axes) const {
  // A group begins at the rank whose coordinates along the axes are all 0.
  std::vector<std::vector<int>> all;
  for (int r = 0; r < ranks(); ++r) {
    const Coordinates at = coordinates(r);
    if (std::all_of(axes.begin(), axes.end(), [&](Axis axis) { return at[axis] == 0; }))
      all.push_back(group(r, axes));
  }
  return all;
}

std::vector<int> Layout::replicas(int rank) const {
  std::vector<int> members;
  Coordinates at = coordinates(rank);
  for (at[Axis::data] = 0; at[Axis::data] < size(Axis::data); ++at[Axis::data])
    for (at[Axis::context] = 0; at[Axis::context] < size(Axis::context); ++at[Axis::context])
      members.push_back(this->rank(at));
  return members;
}

std::string Layout::to_string() const {
  return fmt::format("dp={} tp={} pp={} cp={}", size(Axis::data), size(Axis::tensor),
                     size(Axis::pipeline), size(Axis::context));
}

std::vector<AxisSizes> axis_sizes_of(int ranks) {
  std::vector<AxisSizes> all;
  for_divisors(ranks, [&](int tensor) {
    for_divisors(ranks / tensor, [&](int context) {
      for_divisors(ranks / tensor / context, [&](int pipeline) {
        all.push_back({tensor, context, pipeline, ranks / tensor / context / pipeline});
      });
    });
  });
  return all;
}

}  // namespace choir
