#include <algorithm>
#include <vector>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/simd.hpp"
#include "kernels/gemm/gemm.hpp"

namespace choir {
namespace {

/// Most elements of a converted block of an operand: it is still in a cache when it is multiplied,
/// and memory outside the plan stays below 13 MiB for any vocabulary size.
constexpr std::int64_t kMostElements = std::int64_t{1} << 20;

/// f32 copies of blocks of the operands; they grow to the largest seen.
struct WideOperands {
  std::vector<float> a, b, c, bias;
};

float* room_for(std::int64_t count, std::vector<float>& scratch) {
  if (static_cast<std::int64_t>(scratch.size()) < count)
    scratch.resize(static_cast<std::size_t>(count));
  return scratch.data();
}

/// Rows and columns of a part of a matrix in memory.
struct Block {
  std::int64_t first_row, rows, first_column, columns;
  friend bool operator==(const Block&, const Block&) = default;

  Block transposed_if(bool yes) const {
    return yes ? Block{first_column, columns, first_row, rows} : *this;
  }
};

/// Calls each(at, in_block, access) for the elements of a block: `at` is the index in the matrix
/// with rows of `stride`, `in_block` the index in the block alone.
template <class T, class Each>
void for_block(const Block& block, std::int64_t stride, const Each& each) {
  cpu::parallel_ranges(block.rows, block.columns, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row)
      cpu::for_vectors<T>(0, block.columns, [&](std::int64_t i, auto access) {
        each((block.first_row + row) * stride + block.first_column + i, row * block.columns + i,
             access);
      });
  });
}

template <class T>
const float* widen(const void* from, std::int64_t stride, const Block& block,
                   std::vector<float>& scratch) {
  const T* x = static_cast<const T*>(from);
  float* to = room_for(block.rows * block.columns, scratch);
  for_block<T>(block, stride, [&](std::int64_t at, std::int64_t in_block, auto access) {
    access.store(to + in_block, access.load(x + at));
  });
  return to;
}

template <class T>
void narrow(const float* from, const Block& block, std::int64_t stride, void* to) {
  T* y = static_cast<T*>(to);
  for_block<T>(block, stride, [&](std::int64_t at, std::int64_t in_block, auto access) {
    access.store(y + at, access.load(from + in_block));
  });
}

/// Extents of blocks that are small enough: the largest is halved until all are.
GemmArgs block_of(GemmArgs args) {
  const auto most = [&] { return std::max({args.m * args.k, args.k * args.n, args.m * args.n}); };
  while (most() > kMostElements) {
    std::int64_t& largest = args.n >= std::max(args.m, args.k) ? args.n
                            : args.m >= args.k                 ? args.m
                                                               : args.k;
    largest = (largest + 1) / 2;
  }
  return args;
}

/// The blocks of one product, each computed by products in f32 over blocks of the inner extent.
template <class T>
class Blocks {
 public:
  Blocks(PlanCache& plans, const GemmArgs& args, GemmFunction* product)
      : plans_(plans),
        args_(args),
        product_(product),
        most_(block_of(args)),
        in_place_(args.out == DType::f32 && most_.n == args.n),
        scratch_(plans.get<WideOperands>()) {}

  void run() {
    for (std::int64_t n = 0; n < args_.n; n += most_.n)
      for (std::int64_t m = 0; m < args_.m; m += most_.m)
        run({m, std::min(most_.m, args_.m - m), n, std::min(most_.n, args_.n - n)});
  }

 private:
  void run(const Block& c) {
    GemmArgs wide = args_;
    wide.in = wide.out = DType::f32;
    wide.m = c.rows, wide.n = c.columns;
    float* const sums = in_place_ ? static_cast<float*>(args_.c) + c.first_row * args_.n
                                  : room_for(c.rows * c.columns, scratch_.c);
    wide.c = sums;
    if (args_.accumulate && !in_place_)
      args_.out == DType::f32 ? widen<float>(args_.c, args_.n, c, scratch_.c)
                              : widen<T>(args_.c, args_.n, c, scratch_.c);
    if (args_.bias)
      wide.bias = widen<T>(args_.bias, 0, {0, 1, c.first_column, c.columns}, scratch_.bias);
    for (std::int64_t k = 0; k < args_.k; k += most_.k) {
      wide.k = std::min(most_.k, args_.k - k);
      take_operands({c.first_row, c.rows, k, wide.k}, {k, wide.k, c.first_column, c.columns}, wide);
      product_(plans_, wide);
      wide.accumulate = true, wide.bias = nullptr;
    }
    if (in_place_) return;
    args_.out == DType::f32 ? narrow<float>(sums, c, args_.n, args_.c)
                            : narrow<T>(sums, c, args_.n, args_.c);
  }

  void take_operands(const Block& a, const Block& b, GemmArgs& wide) {
    wide.a = widen<T>(args_.a, args_.transpose_a ? args_.m : args_.k,
                      a.transposed_if(args_.transpose_a), scratch_.a);
    if (b != b_there_)
      widen<T>(args_.b, args_.transpose_b ? args_.k : args_.n, b.transposed_if(args_.transpose_b),
               scratch_.b);
    b_there_ = b;
    wide.b = scratch_.b.data();
  }

  PlanCache& plans_;
  const GemmArgs& args_;
  GemmFunction* product_;
  const GemmArgs most_;  // extents of a block
  const bool in_place_;  // blocks of C are whole rows of f32 sums
  WideOperands& scratch_;
  Block b_there_{};
};

}  // namespace

void gemm_widened(PlanCache& plans, const GemmArgs& args, GemmFunction* product) {
  if (args.in == DType::bf16)
    Blocks<bf16>(plans, args, product).run();
  else
    Blocks<f16>(plans, args, product).run();
}

}  // namespace choir
