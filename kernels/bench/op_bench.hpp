#pragma once
// Time of a call on a device: the median over a budget of time, after a warm-up; and the best
// measured rates of a device, the yardstick for MFU and for every benchmark. On cuda the clock is
// that of the device (events around batches of calls, so that neither launches nor the host are
// included), on the cpu the system's clock around each call.

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "choir/core/dtype.hpp"
#include "choir/device/device.hpp"
#include "kernels/bench/bench_operands.hpp"
#include "kernels/bench/bench_table.hpp"

namespace choir::ops {

/// Runs call number `i`. Benches of bandwidth-bound ops choose their operands by i % sets, so that
/// no call finds them in a cache (see bench_operands.hpp).
using TimedCall = std::function<void(std::int64_t i)>;

/// Median seconds of one call, of at least five measurements and about `seconds` of calls. `before`
/// runs before every call, which is then timed alone: for ops that overwrite their input.
double median_seconds(const Stream& stream, double seconds, const TimedCall& call,
                      const TimedCall& before = {});

/// The shortest time of a few calls: the best case, for ceilings.
double best_seconds(const Stream& stream, int rounds, const TimedCall& call);

/// Extent of a square product that counts as large on a device: 1024 on the cpu, 8192 on cuda,
/// which smaller ones do not fill.
std::int64_t large_product(DeviceKind kind);

/// FLOP/s of one large square product of random numbers (n x n x n), the best of a few; n = 0 means
/// large_product(). Takes about 20 ms for n = 1024 on two cores.
double measure_gemm(const Stream& stream, DType dtype, std::int64_t n = 0);

/// Bytes/s (read + written) of copying `bytes` of random memory, the best of a few; 0 means a size
/// beyond every cache (256 MiB, on cuda 1 GiB).
double measure_copy(const Stream& stream, std::size_t bytes = 0);

// Shared by the benches of ops: a row's operands, its timing, and windows of rows to check.

/// Rows [first, first + count) of a result that are compared.
struct Window {
  std::int64_t first = 0, count = 0;
};

/// All rows of a small result; else the first, some in the middle and the last. No window crosses
/// the end of a sequence of `tokens` rows.
std::vector<Window> windows_of(std::int64_t rows, std::int64_t tokens);
/// The same for flat memory.
std::vector<Window> windows_of(std::int64_t elements);

/// Collects the rows of one dtype.
class OpBench {
 public:
  OpBench(Device& device, DType type, const BenchShape& bench_shape, double seconds, double ceiling,
          const NormalPool& pool, std::vector<BenchRow>& rows)
      : dtype(type),
        sums(type == DType::f64 ? DType::f64 : DType::f32),
        shape(bench_shape),
        stream(device),
        device_(&device),
        pool_(&pool),
        seconds_(seconds),
        ceiling_(ceiling),
        rows_(&rows) {}

  /// Operands for calls that touch at least `elements` of the dtype.
  BenchOperands operands(double elements) const {
    return {*device_, *pool_, elements * static_cast<double>(size_of(dtype))};
  }
  /// Times `call` and adds the row. Bytes are those that the op counts.
  template <class Call>
  void row(const char* name, const Shape& of, const Agreement& agreement, const Call& call,
           const TimedCall& before = {}) {
    WorkCounter work;
    call(Stream(*device_, stream.native(), &work), 0);
    BenchRow row{.name = name,
                 .shape = to_string(of),
                 .dtype = dtype,
                 .work = work.bytes,
                 .other = work.flops};
    row.ceiling = ceiling_;
    row.seconds = median_seconds(
        stream, seconds_, [&](std::int64_t i) { call(stream, i); }, before);
    agreement.judge(row);
    rows_->push_back(row);
  }

  const DType dtype, sums;
  const BenchShape shape;
  const Stream stream;

 private:
  Device* device_;
  const NormalPool* pool_;
  double seconds_, ceiling_;
  std::vector<BenchRow>* rows_;
};

/// A reference tensor in host memory.
inline TensorView view_of(std::vector<double>& values, const Shape& shape) {
  return {values.data(), DType::f64, shape};
}

// The benches, one function per file.
void bench_norms(OpBench& bench);
void bench_activations(OpBench& bench);
void bench_tokens(OpBench& bench);     // embedding, cross-entropy
void bench_positions(OpBench& bench);  // rope, dropout
void bench_ctc(OpBench& bench);
void bench_features(OpBench& bench);      // log-mel, normalisation, SpecAugment
void bench_convolutions(OpBench& bench);  // and GLU, batch norm
void bench_relative(OpBench& bench);      // relative-position attention and its helpers
void bench_blocks(OpBench& bench);        // split norm, stochastic depth, running statistics
void bench_flat(OpBench& bench);          // add, blocks, cast, bias gradient, sum of squares, AdamW

}  // namespace choir::ops
