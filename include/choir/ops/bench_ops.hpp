#pragma once
// Benchmark of the bandwidth-bound ops of a device, relative to the rate at which it copies memory,
// with a check of their results.
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/bench_row.hpp"

namespace choir::ops {

/// Shapes of a FastConformer: a micro-batch of features, subsampling by eight, the width of its
/// blocks.
struct SpeechBenchShape {
  std::int64_t samples = 0;  ///< 0 omits its ops
  std::int64_t frames = 1500, mels = 80, channels = 32, width = 144, heads = 4, taps = 9;
};

/// The shapes of a bench: rows are tokens of a micro-batch.
struct BenchShape {
  std::int64_t rows = 768, width = 128, hidden = 512, vocabulary = 65;
  std::int64_t tokens = 64;      ///< tokens of a sequence; need not divide the rows
  std::int64_t head_width = 32;  ///< divides width
  std::int64_t parameters = 0;   ///< size of AdamW and sums; 0 omits them
  SpeechBenchShape speech{};
};

/// Runs every op at `shape` in each of `types`, all of which `device` supports(). Normal random
/// operands, cold caches (see BenchOperands), about `seconds` of calls per row. Small results are
/// checked completely, large ones in rows at both ends and in the middle (sums over rows: over all
/// rows). Local. `ceiling` in bytes/s; 0: measured. Throws on a device that does not compute.
std::vector<BenchRow> bench_ops(Device& device, const BenchShape& shape,
                                const std::vector<DType>& types, double seconds = 0.1,
                                double ceiling = 0);

}  // namespace choir::ops
