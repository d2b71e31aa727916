#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

#include "choir/core/error.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/simd.hpp"
#include "kernels/gemm/gemm.hpp"

namespace choir {
namespace {

/// 2 kLanes<T> elements in two vectors, in a permuted order: the cheapest conversion from bf16 puts
/// the even elements first. In a sum of products any order is allowed, if both factors have the
/// same.
template <class T>
struct Pair {
  cpu::Floats low, high;
};
template <class T>
constexpr std::int64_t kPair = 2 * cpu::kLanes<T>;

template <class T>
Pair<T> load_pair(const T* p) {
  if constexpr (std::is_same_v<T, bf16>) {
    cpu::Words both;
    std::memcpy(&both, p, sizeof both);
    return {(cpu::Floats)(both << 16), (cpu::Floats)(both & 0xffff0000u)};
  } else {
    return {cpu::load(p), cpu::load(p + cpu::kLanes<T>)};
  }
}

/// Rows of A as f32, in the order of Pair, because they are read once per row of B.
struct FewRows {
  std::vector<float> rows;
};

template <class T>
const float* as_f32(PlanCache& plans, const GemmArgs& args) {
  if constexpr (std::is_same_v<T, float>) {
    return static_cast<const float*>(args.a);
  } else {
    std::vector<float>& rows = plans.get<FewRows>().rows;
    rows.resize(std::max(rows.size(), static_cast<std::size_t>(args.m * args.k)));
    for (std::int64_t r = 0; r < args.m; ++r) {
      const T* from = static_cast<const T*>(args.a) + r * args.k;
      float* to = rows.data() + r * args.k;
      std::int64_t i = 0;
      for (; i + kPair<T> <= args.k; i += kPair<T>) {
        const Pair<T> pair = load_pair(from + i);
        cpu::store(to + i, pair.low);
        cpu::store(to + i + cpu::kLanes<T>, pair.high);
      }
      cpu::for_vectors<T>(i, args.k, [&](std::int64_t j, auto access) {
        access.store(to + j, access.load(from + j));
      });
    }
    return rows.data();
  }
}

/// The dot products of M rows of A with one row of B; memory delivers one row of B faster than
/// several at once. Each product has two sums, in the same order whatever M is: enough to hide the
/// latency of an addition behind memory.
template <int M, class T>
void dots(const float* a, const T* b, std::int64_t k, float (&products)[M]) {
  cpu::Floats low[M] = {}, high[M] = {};
  std::int64_t i = 0;
  for (; i + kPair<T> <= k; i += kPair<T>) {
    const Pair<T> of_b = load_pair(b + i);
    for (int r = 0; r < M; ++r) {
      const float* of_a = a + r * k + i;
      low[r] = cpu::multiply_add(cpu::load(of_a), of_b.low, low[r]);
      high[r] = cpu::multiply_add(cpu::load(of_a + cpu::kLanes<T>), of_b.high, high[r]);
    }
  }
  cpu::for_vectors<T>(i, k, [&](std::int64_t j, auto access) {
    const cpu::Floats of_b = access.load(b + j);
    for (int r = 0; r < M; ++r)
      low[r] = cpu::multiply_add(access.load(a + r * k + j), of_b, low[r]);
  });
  for (int r = 0; r < M; ++r) products[r] = cpu::sum_of_lanes(low[r] + high[r]);
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

  /// Computes columns of C: a row of B comes from memory once, and from cache for further rows of
  /// A.
  void columns(std::int64_t first, std::int64_t last) const {
    for (std::int64_t j = first; j < last; ++j) {
      std::int64_t i = 0;
      for (; i + kTogether <= args_.m; i += kTogether) rows<kTogether>(i, j);
      for (; i < args_.m; ++i) rows<1>(i, j);
    }
  }

 private:
  static constexpr int kTogether = 4;

  template <int M>
  void rows(std::int64_t i, std::int64_t j) const {
    float products[M];
    dots<M>(a_ + i * args_.k, b_ + j * args_.k, args_.k, products);
    for (std::int64_t r = 0; r < M; ++r) {
      C& element = c_[(i + r) * args_.n + j];
      float sum = products[r];
      if (bias_) sum += static_cast<float>(bias_[j]);
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
