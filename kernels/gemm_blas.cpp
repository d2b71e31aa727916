#include <cblas.h>

#include <limits>
#include <vector>

#include "choir/core/error.hpp"
#include "kernels/gemm.hpp"
#include "kernels/reduce.hpp"

namespace choir {
namespace {

/// f32 copies of 16-bit operands; they grow to the largest product seen.
struct ConvertedOperands {
  std::vector<float> a, b, c, bias;
};

void call_blas(const GemmArgs& args, const double* a, const double* b, double* c, double beta) {
  cblas_dgemm(CblasRowMajor, args.transpose_a ? CblasTrans : CblasNoTrans,
              args.transpose_b ? CblasTrans : CblasNoTrans, static_cast<int>(args.m),
              static_cast<int>(args.n), static_cast<int>(args.k), 1.0, a,
              static_cast<int>(args.transpose_a ? args.m : args.k), b,
              static_cast<int>(args.transpose_b ? args.k : args.n), beta, c,
              static_cast<int>(args.n));
}

void call_blas(const GemmArgs& args, const float* a, const float* b, float* c, float beta) {
  cblas_sgemm(CblasRowMajor, args.transpose_a ? CblasTrans : CblasNoTrans,
              args.transpose_b ? CblasTrans : CblasNoTrans, static_cast<int>(args.m),
              static_cast<int>(args.n), static_cast<int>(args.k), 1.0f, a,
              static_cast<int>(args.transpose_a ? args.m : args.k), b,
              static_cast<int>(args.transpose_b ? args.k : args.n), beta, c,
              static_cast<int>(args.n));
}

/// The bias goes into C first and the product is added, so that C is rounded once per term as
/// elsewhere.
template <class T>
void multiply(const GemmArgs& args, const T* a, const T* b, const T* bias, T* c) {
  if (bias) {
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < args.m; ++i)
      for (std::int64_t j = 0; j < args.n; ++j) {
        T& element = c[i * args.n + j];
        element = args.accumulate ? element + bias[j] : bias[j];
      }
  }
  call_blas(args, a, b, c, bias || args.accumulate ? T(1) : T(0));
}

float* room_for(std::int64_t count, std::vector<float>& scratch) {
  if (static_cast<std::int64_t>(scratch.size()) < count)
    scratch.resize(static_cast<std::size_t>(count));
  return scratch.data();
}

template <class T>
const float* widen(const void* from, std::int64_t count, std::vector<float>& scratch) {
  float* to = room_for(count, scratch);
  cpu::cast<T, float>({const_cast<void*>(from), DTypeOf<T>::value, Shape{count}},
                      {to, DType::f32, Shape{count}});
  return to;
}

/// 16-bit operands: converted, multiplied in f32, rounded once.
template <class T>
void multiply_wide(ConvertedOperands& scratch, const GemmArgs& args) {
  const float* a = widen<T>(args.a, args.m * args.k, scratch.a);
  const float* b = widen<T>(args.b, args.k * args.n, scratch.b);
  const float* bias = args.bias ? widen<T>(args.bias, args.n, scratch.bias) : nullptr;
  if (args.out == DType::f32) return multiply(args, a, b, bias, static_cast<float*>(args.c));
  const std::int64_t count = args.m * args.n;
  float* c = room_for(count, scratch.c);
  if (args.accumulate) widen<T>(args.c, count, scratch.c);
  multiply(args, a, b, bias, c);
  cpu::cast<float, T>({c, DType::f32, Shape{count}}, {args.c, args.out, Shape{count}});
}

}  // namespace

void gemm_blas(PlanCache& plans, const GemmArgs& args) {
  constexpr std::int64_t kLargest = std::numeric_limits<int>::max();
  CHOIR_CHECK(args.m <= kLargest && args.n <= kLargest && args.k <= kLargest,
              "{} x {} x {} is too large for CBLAS", args.m, args.n, args.k);
  switch (args.in) {
    case DType::f64:
      return multiply(args, static_cast<const double*>(args.a), static_cast<const double*>(args.b),
                      static_cast<const double*>(args.bias), static_cast<double*>(args.c));
    case DType::f32:
      return multiply(args, static_cast<const float*>(args.a), static_cast<const float*>(args.b),
                      static_cast<const float*>(args.bias), static_cast<float*>(args.c));
    case DType::bf16:
      return multiply_wide<bf16>(plans.get<ConvertedOperands>(), args);
    case DType::f16:
      return multiply_wide<f16>(plans.get<ConvertedOperands>(), args);
    default:
      CHOIR_CHECK(false, "gemm of {}", name_of(args.in));
  }
}

}  // namespace choir
