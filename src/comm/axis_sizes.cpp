#include "choir/comm/axis_sizes.hpp"

namespace choir {
namespace {

template <class Visit>
void for_divisors(int n, const Visit& visit) {
  for (int d = 1; d <= n; ++d)
    if (n % d == 0) visit(d);
}

}  // namespace

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
