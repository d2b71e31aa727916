#pragma once
// Benchmark of the bandwidth-bound ops of a device, relative to the rate at which it copies memory:
// its shapes, and its rows with time, rate, fraction of the device's best rate, and validity of the
// result.

#include <string>
#include <vector>

#include "choir/core/dtype.hpp"
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

enum class BenchUnit { bytes, flops };

struct BenchRow {
  std::string name;     ///< "norm_forward+add", "blocks.*.attention.qkv d_weight"
  std::string variant;  ///< the implementation, if there are several: "own", "cudnn"
  std::string shape;    ///< "[768, 128]", "768 x 384 x 128"
  DType dtype = DType::f32;
  BenchUnit unit = BenchUnit::bytes;
  double seconds = 0;  ///< median of one call
  double work = 0;     ///< unavoidable bytes, or FLOPs, of one call
  double other = 0;    ///< the FLOPs of a row of bytes, the bytes of a row of FLOPs; 0: unknown
  double ceiling =
      0;  ///< best rate of this device, in the same unit a second, measured in the same run
  double error = 0;    ///< worst of its results: root mean square relative to the fp64 reference
  double allowed = 0;  ///< allowed error of that result
  std::int64_t calls = 0;  ///< calls in a micro-batch of the deck; 0: not part of one

  /// The op and its implementation.
  std::string title() const { return variant.empty() ? name : name + " " + variant; }
  bool valid() const { return error <= allowed; }  // false for NaN
  double flops() const { return unit == BenchUnit::flops ? work : other; }
  double bytes() const { return unit == BenchUnit::bytes ? work : other; }
  double rate() const { return work / seconds; }
  double fraction() const { return rate() / ceiling; }
};

/// Column titles of to_string(), as a comment line. `names`: the width of the first column.
std::string bench_row_header(std::size_t names = 26);
/// "norm_forward+add  [768, 128]  f32  12.3 us  31.2 GB/s  87 %  VALID"
std::string to_string(const BenchRow& row, std::size_t names = 26);

/// Compares results with their references; a row's error is that of its worst tensor.
class Agreement {
 public:
  /// `allowed`: root mean square error relative to the root mean square of `expected`.
  void add(const std::vector<double>& actual, const std::vector<double>& expected, double allowed);
  void judge(BenchRow& row) const;

 private:
  double error_ = 0, allowed_ = 0, worst_ = -1;
};

/// Root mean square error that rounding explains, relative to the result's root mean square: one
/// rounding to `dtype`; sixteen in the intermediate accumulator (including exponentials of a few
/// ulps); and a random walk of `accumulated` roundings, which is sqrt(n / 6) of them.
double allowed_error(DType dtype, double accumulated);
/// The same for a product over `k` of half-precision factors on tensor cores, which truncate
/// instead of rounding when they add a group of 16 products (Fasi, Higham, Mikaitis, Pranesh 2021):
/// k / 16 units in the last place in one direction.
double allowed_product_error(DType in, DType out, double k);

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
  bool text = true;  ///< false omits embedding, cross-entropy and rope
};

/// Runs every op at `shape` in each of `types`, all of which `device` supports(). Normal random
/// operands, cold caches (see BenchOperands), about `seconds` of calls per row. Small results are
/// checked completely, large ones in rows at both ends and in the middle (sums over rows: over all
/// rows). Local. `ceiling` in bytes/s; 0: measured. Throws on a device that does not compute.
std::vector<BenchRow> bench_ops(Device& device, const BenchShape& shape,
                                const std::vector<DType>& types, double seconds = 0.1,
                                double ceiling = 0);

}  // namespace choir::ops
