#include "kernels/bench/bench_ops.hpp"

#include <algorithm>

#include "choir/core/error.hpp"
#include "choir/ops/ceiling.hpp"

namespace choir::ops {

std::vector<Window> windows_of(std::int64_t rows, std::int64_t tokens) {
  constexpr std::int64_t kWhole = 1024, kCount = 48;
  const std::int64_t sequences = (rows + tokens - 1) / tokens, last = (sequences - 1) * tokens;
  std::vector<Window> windows;
  if (rows <= kWhole) {
    for (std::int64_t first = 0; first < rows; first += tokens)
      windows.push_back({first, std::min(tokens, rows - first)});
    return windows;
  }
  const std::int64_t count = std::min(kCount, tokens), end = std::min(count, rows - last);
  windows.push_back({0, count});
  if (sequences > 2) windows.push_back({sequences / 2 * tokens, count});
  windows.push_back({rows - end, end});
  return windows;
}

std::vector<Window> windows_of(std::int64_t elements) {
  constexpr std::int64_t kCount = 4096;
  if (elements <= 3 * kCount) return {{0, elements}};
  return {{0, kCount}, {elements / 2, kCount}, {elements - kCount, kCount}};
}

std::vector<BenchRow> bench_ops(Device& device, const BenchShape& shape,
                                const std::vector<DType>& types, double seconds, double ceiling) {
  CHOIR_CHECK(device.kind() != DeviceKind::null,
              "the op bench measures devices that compute, not {}", name_of(device.kind()));
  CHOIR_CHECK(shape.width % shape.head_width == 0 && shape.tokens > 0,
              "heads {} wide in rows of {}", shape.head_width, shape.width);
  if (ceiling == 0) ceiling = measure_copy(Stream(device));
  const NormalPool pool;
  std::vector<BenchRow> rows;
  for (const DType dtype : types) {
    OpBench bench(device, dtype, shape, seconds, ceiling, pool, rows);
    bench_norms(bench);
    bench_activations(bench);
    bench_tokens(bench);
    bench_ctc(bench);
    bench_features(bench);
    bench_convolutions(bench);
    bench_relative(bench);
    bench_blocks(bench);
    bench_positions(bench);
    bench_flat(bench);
  }
  return rows;
}

}  // namespace choir::ops
