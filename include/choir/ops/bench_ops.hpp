#pragma once
// How fast the bandwidth-bound ops run on a device, against the rate at which it copies memory, and
// whether they are right.
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/bench_row.hpp"

namespace choir::ops {

/// What a FastConformer adds: a micro-batch of features, its subsampling to an eighth, the width of
/// its blocks.
struct SpeechBenchShape {
  std::int64_t samples = 0;  ///< 0 leaves its ops out
  std::int64_t frames = 1500, mels = 80, channels = 32, width = 144, heads = 4, taps = 9;
};

/// The shapes of a bench: rows are tokens of a micro-batch.
struct BenchShape {
  std::int64_t rows = 768, width = 128, hidden = 512, vocabulary = 65;
  std::int64_t tokens = 64;      ///< of a sequence; divides or exceeds nothing, rows may be ragged
  std::int64_t head_width = 32;  ///< divides width
  std::int64_t parameters = 0;   ///< AdamW and sums run over this many; 0 leaves them out
  SpeechBenchShape speech{};
};

/// Every op at `shape` in each of `types`, all of which `device` supports(). Normal random
/// operands, cold caches (see BenchOperands), about `seconds` of calls a row. Checked on the whole
/// of small results; of large ones on rows at both ends and in the middle (sums over rows: on all
/// rows). Local. `ceiling` bytes/s; 0: measured. A device that does not compute is refused.
std::vector<BenchRow> bench_ops(Device& device, const BenchShape& shape,
                                const std::vector<DType>& types, double seconds = 0.1,
                                double ceiling = 0);

}  // namespace choir::ops
