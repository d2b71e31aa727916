#include "choir/core/error.hpp"
#include "kernels/gemm.hpp"

namespace choir::ref {
namespace {

double load(const void* base, DType type, std::int64_t i) {
  switch (type) {
    case DType::f64:
      return static_cast<const double*>(base)[i];
    case DType::f32:
      return static_cast<double>(static_cast<const float*>(base)[i]);
    case DType::bf16:
      return static_cast<double>(static_cast<float>(static_cast<const bf16*>(base)[i]));
    default:
      CHOIR_CHECK(false, "gemm of {}", name_of(type));
  }
  return 0;
}

void store(void* base, DType type, std::int64_t i, double value) {
  switch (type) {
    case DType::f64:
      static_cast<double*>(base)[i] = value;
      return;
    case DType::f32:
      static_cast<float*>(base)[i] = static_cast<float>(value);
      return;
    case DType::bf16:
      static_cast<bf16*>(base)[i] = bf16(static_cast<float>(value));
      return;
    default:
      CHOIR_CHECK(false, "gemm of {}", name_of(type));
  }
}

}  // namespace

void gemm(const GemmArgs& args) {
  for (std::int64_t i = 0; i < args.m; ++i)
    for (std::int64_t j = 0; j < args.n; ++j) {
      double sum = args.accumulate ? load(args.c, args.out, i * args.n + j) : 0;
      if (args.bias) sum += load(args.bias, args.in, j);
      for (std::int64_t p = 0; p < args.k; ++p) {
        const std::int64_t at_a = args.transpose_a ? p * args.m + i : i * args.k + p;
        const std::int64_t at_b = args.transpose_b ? j * args.k + p : p * args.n + j;
        sum += load(args.a, args.in, at_a) * load(args.b, args.in, at_b);
      }
      store(args.c, args.out, i * args.n + j, sum);
    }
}

}  // namespace choir::ref
