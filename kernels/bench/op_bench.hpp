#pragma once
// Shared by the benches of ops: a row's operands, its timing, and windows of rows to check.

#include <utility>
#include <vector>

#include "kernels/bench/bench_operands.hpp"
#include "kernels/bench/bench_table.hpp"
#include "kernels/bench/stopwatch.hpp"

namespace choir::ops {

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
    BenchRow row{.name = name, .shape = to_string(of), .dtype = dtype, .work = work.bytes};
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
