#include "src/parallel/pipeline/layer_partition.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>

#include "choir/core/error.hpp"

namespace choir {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// at(k, i) is the least cost of units i, i + 1, ... in k ranges, if a range costs `cost(first,
/// end)` and costs are combined by `join`.
class BestCuts {
 public:
  using Cost = std::function<double(std::size_t, std::size_t)>;
  using Join = std::function<double(double, double)>;

  BestCuts(std::size_t units, std::size_t parts, const Cost& cost, const Join& join)
      : units_(units), best_((parts + 1) * (units + 1), kNever) {
    at(0, units) = 0;
    for (std::size_t k = 1; k <= parts; ++k)
      for (std::size_t i = 0; i + k <= units; ++i)
        for (std::size_t end = i + 1; end + k - 1 <= units; ++end)
          at(k, i) = std::min(at(k, i), join(cost(i, end), at(k - 1, end)));
  }
  double& at(std::size_t k, std::size_t i) { return best_[k * (units_ + 1) + i]; }

 private:
  std::size_t units_;
  std::vector<double> best_;
};

}  // namespace

std::vector<UnitRange> partition_units(const std::vector<double>& costs, int parts) {
  const std::size_t units = costs.size();
  if (parts < 1 || static_cast<std::size_t>(parts) > units)
    throw Error(ExitCode::other, fmt::format("{} units cannot be cut into {} parts", units, parts),
                fmt::format("the nearest legal value is {}", parts < 1 ? 1 : units));
  std::vector<double> sum(units + 1, 0);
  for (std::size_t i = 0; i < units; ++i) {
    if (!(costs[i] >= 0 && std::isfinite(costs[i])))
      throw Error(ExitCode::other, fmt::format("unit {} has cost {}", i, costs[i]),
                  "give a finite number that is not negative");
    sum[i + 1] = sum[i] + costs[i];
  }
  const auto cost = [&](std::size_t first, std::size_t end) { return sum[end] - sum[first]; };
  const double total = sum[units], slack = 1e-9 * total;
  const auto count = static_cast<std::size_t>(parts);
  const double largest =
      BestCuts(units, count, cost, [](double a, double b) { return std::max(a, b); }).at(count, 0);
  const auto square = [&](std::size_t first, std::size_t end) {
    const double c = cost(first, end);
    return c > largest + slack ? kNever : c * c;
  };
  BestCuts squares(units, count, square, std::plus<>());
  std::vector<UnitRange> ranges;
  std::size_t first = 0;
  for (std::size_t k = count; k > 0; --k) {
    std::size_t end = units - (k - 1);  // tries the longest first; one of them attains the minimum
    while (square(first, end) + squares.at(k - 1, end) > squares.at(k, first) + slack * total)
      --end;
    ranges.push_back({static_cast<int>(first), static_cast<int>(end - first)});
    first = end;
  }
  return ranges;
}

std::vector<UnitRange> partition_layers(const UnitCosts& costs, int stages, int virtual_stages) {
  const int layers = static_cast<int>(costs.size()) - 2;
  const auto at_least_one = [](const char* key, int value) {
    if (value < 1)
      throw DeckError(fmt::format("{}: {} is below 1", key, value), "the nearest legal value is 1");
  };
  at_least_one("model.n_layer", layers);
  at_least_one("parallel.pipeline", stages);
  at_least_one("parallel.virtual_stages", virtual_stages);
  if (static_cast<std::int64_t>(stages) * virtual_stages > layers) {
    std::string hint =
        fmt::format("nearest legal: parallel.pipeline={}", std::max(1, layers / virtual_stages));
    if (virtual_stages > layers) hint += fmt::format(" with parallel.virtual_stages={}", layers);
    if (virtual_stages > 1 && stages <= layers)
      hint += fmt::format(", or parallel.virtual_stages={}", layers / stages);
    throw DeckError(
        fmt::format("parallel.pipeline={} with parallel.virtual_stages={} cuts the model into {} "
                    "pieces, but it has {} layers",
                    stages, virtual_stages, static_cast<std::int64_t>(stages) * virtual_stages,
                    layers),
        hint);
  }
  return partition_units(costs, stages * virtual_stages);
}

}  // namespace choir
