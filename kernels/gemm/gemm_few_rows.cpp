#include <algorithm>
#include <cstddef>
#include <vector>

#include "choir/core/error.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/simd.hpp"
#include "kernels/gemm/gemm.hpp"

namespace choir {
namespace {

/// Rows of A as f32, for they are read once for every row of B.
struct FewRows {
  std::vector<float> rows;
};

template <class T>
const float* as_f32(PlanCache& plans, const GemmArgs& args) {
  if constexpr (std::is_same_v<T, float>) {
    return static_cast<const float*>(args.a);
  } else {
    std::vector<float>& rows = plans.get<FewRows>().rows;
    const std::int64_t count = args.m * args.k;
    rows.resize(std::max(rows.size(), static_cast<std::size_t>(count)));
    const T* from = static_cast<const T*>(args.a);
    cpu::for_vectors<T>(0, count, [&](std::int64_t i, auto access) {
      access.store(rows.data() + i, access.load(from + i));
    });
    return rows.data();
  }
}

/// The dot products of M rows of A with N rows of B. Each has one sum, in the same order whatever M
/// and N are, and there are enough of them to hide the latency of an addition.
template <int M, int N, class T>
void dots(const float* a, const T* b, std::int64_t k, float (&products)[M][N]) {
  cpu::Floats sums[M][N] = {};
  const auto add = [&](std::int64_t i, auto access) {
    cpu::Floats of_b[N];
    for (int c = 0; c < N; ++c) of_b[c] = access.load(b + c * k + i);
    for (int r = 0; r < M; ++r) {
      const cpu::Floats of_a = access.load(a + r * k + i);
      for (int c = 0; c < N; ++c) sums[r][c] = cpu::multiply_add(of_a, of_b[c], sums[r][c]);
    }
  };
  cpu::for_vectors<T>(0, k, add);
  for (int r = 0; r < M; ++r)
    for (int c = 0; c < N; ++c) products[r][c] = cpu::sum_of_lanes(sums[r][c]);
}

template <class T, class C>
class Product {
 public:
  Product(const GemmArgs& args, const float* a)
      : args_(args),
        a_(a),
        b_(static_cast<const T*>(args.b)),
        bias_(static_cast<const T*>(args.bias)),
        c_(static_cast<C*>(args.c)) {}

  /// Columns of C: rows of B come from memory once, and from cache for further rows of A.
  void columns(std::int64_t first, std::int64_t last) const {
    std::int64_t j = first;
    for (; j + kTogether <= last; j += kTogether) rows<kTogether>(j);
    for (; j < last; ++j) rows<1>(j);
  }

 private:
  static constexpr int kTogether = 4;

  template <int N>
  void rows(std::int64_t j) const {
    std::int64_t i = 0;
    for (; i + 4 <= args_.m; i += 4) {
      if constexpr (N == kTogether) {  // as many sums as there are registers
        part<4, N / 2>(i, j);
        part<4, N / 2>(i, j + N / 2);
      } else {
        part<4, N>(i, j);
      }
    }
    for (; i < args_.m; ++i) part<1, N>(i, j);
  }

  template <int M, int N>
  void part(std::int64_t i, std::int64_t j) const {
    float products[M][N];
    dots<M, N>(a_ + i * args_.k, b_ + j * args_.k, args_.k, products);
    for (std::int64_t r = 0; r < M; ++r)
      for (std::int64_t c = 0; c < N; ++c) {
        C& element = c_[(i + r) * args_.n + j + c];
        float sum = products[r][c];
        if (bias_) sum += static_cast<float>(bias_[j + c]);
        if (args_.accumulate) sum += static_cast<float>(element);
        element = static_cast<C>(sum);
      }
  }

  const GemmArgs& args_;
  const float* a_;
  const T* b_;
  const T* bias_;
  C* c_;
};

template <class T, class C>
void multiply(PlanCache& plans, const GemmArgs& args) {
  const Product<T, C> product(args, as_f32<T>(plans, args));
  cpu::parallel_ranges(args.n, args.k * args.m, [&](std::int64_t first, std::int64_t last) {
    product.columns(first, last);
  });
}

}  // namespace

bool gemm_few_rows(PlanCache& plans, const GemmArgs& args) {
  if (args.m > kFewRows || args.transpose_a || !args.transpose_b) return false;
  const bool wide = args.out == DType::f32;
  switch (args.in) {
    case DType::f32:
      return multiply<float, float>(plans, args), true;
    case DType::bf16:
      wide ? multiply<bf16, float>(plans, args) : multiply<bf16, bf16>(plans, args);
      return true;
    case DType::f16:
      wide ? multiply<f16, float>(plans, args) : multiply<f16, f16>(plans, args);
      return true;
    default:
      return false;
  }
}

}  // namespace choir
