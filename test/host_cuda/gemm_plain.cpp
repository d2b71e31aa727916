// gemm_cuda() under host execution, in place of cuBLASLt: plain loops in f32 (the pace of the real
// one is not the point, its rounding is), queued like a kernel. As strict as the library: what it
// has no call for is not offered here either, so that callers take the same way.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "choir/core/error.hpp"
#include "kernels/cpu/ref_element.hpp"
#include "kernels/gemm/gemm.hpp"

namespace choir {
namespace {

using ops::GemmEpilogue;

float load(const void* base, DType type, std::int64_t i) {
  return static_cast<float>(ref::load(base, type, i));
}

/// [rows, columns] in f32, whichever way it is stored.
std::vector<float> widened(const void* base, DType type, std::int64_t rows, std::int64_t columns,
                           bool transposed) {
  std::vector<float> wide(static_cast<std::size_t>(rows * columns));
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      wide[static_cast<std::size_t>(r * columns + c)] =
          load(base, type, transposed ? c * rows + r : r * columns + c);
  return wide;
}

constexpr float kRootTwoOverPi = 0.7978845608f, kCubic = 0.044715f;

/// As wrong as the library may be, which does not say that it is better than PTX's tanh.approx.f32:
/// 2^-11 of the value, to either side.
float short_tanh(float x) {
  constexpr float kError = 0x1p-11f;
  const float up = std::bit_cast<std::uint32_t>(x) % 2 == 0 ? 1.0f : -1.0f;
  return std::clamp(std::tanh(x) * (1 + up * kError), -1.0f, 1.0f);
}
float gelu(float x) {
  return 0.5f * x * (1 + short_tanh(kRootTwoOverPi * (x + kCubic * x * x * x)));
}
float gelu_slope(float x) {
  const float t = short_tanh(kRootTwoOverPi * (x + kCubic * x * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * kRootTwoOverPi * (1 + 3 * kCubic * x * x);
}

float through_epilogue(const GemmArgs& args, std::int64_t at, float x) {
  switch (args.epilogue) {
    case GemmEpilogue::none:
      return x;
    case GemmEpilogue::gelu_tanh:
      if (args.pre_activation) ref::store(args.pre_activation, args.out, at, double{x});
      return gelu(x);
    case GemmEpilogue::gelu_tanh_gradient:
      return x * gelu_slope(load(args.pre_activation, args.out, at));
  }
  return x;
}

void multiply(const GemmArgs& args) {
  const std::vector<float> a = widened(args.a, args.in, args.m, args.k, args.transpose_a);
  const std::vector<float> b = widened(args.b, args.in, args.k, args.n, args.transpose_b);
  std::vector<float> row(static_cast<std::size_t>(args.n)), sums_of_c(row.size(), 0.0f);
  for (std::int64_t i = 0; i < args.m; ++i) {
    std::fill(row.begin(), row.end(), 0.0f);
    float sum_of_a = 0;
    for (std::int64_t p = 0; p < args.k; ++p) {
      const float factor = a[static_cast<std::size_t>(i * args.k + p)];
      const float* from = b.data() + p * args.n;
      sum_of_a += factor;
      for (std::size_t j = 0; j < row.size(); ++j) row[j] += factor * from[j];
    }
    for (std::size_t j = 0; j < row.size(); ++j) {
      const auto column = static_cast<std::int64_t>(j), at = i * args.n + column;
      float x = row[j];
      if (args.accumulate) x += load(args.c, args.out, at);
      if (args.bias) x += load(args.bias, args.in, column);
      x = through_epilogue(args, at, x);
      sums_of_c[j] += x;
      ref::store(args.c, args.out, at, double{x});
    }
    if (args.sums_of_a) ref::store(args.sums_of_a, args.out, i, double{sum_of_a});
  }
  for (std::size_t j = 0; args.sums_of_c && j < row.size(); ++j)
    ref::store(args.sums_of_c, args.out, static_cast<std::int64_t>(j), double{sums_of_c[j]});
}

void check_type(DType type) {
  if (type == DType::f64)
    throw DeckError("no cuda product of elements of type f64", "fp64 runs on the CPU: device=cpu");
}

}  // namespace

bool gemm_cuda_offers(const Stream&, const GemmArgs& args) {
  constexpr std::int64_t kAuxMultiple = 8;
  check_type(args.in);
  if (args.bias && args.in != args.out) return false;
  if (args.batch > 1 && (args.bias || args.epilogue != GemmEpilogue::none || args.sums_of_a))
    return false;
  const bool gradient = args.epilogue == GemmEpilogue::gelu_tanh_gradient;
  if (args.pre_activation && args.n % kAuxMultiple != 0) return false;
  if (args.sums_of_a && (args.epilogue != GemmEpilogue::none || args.bias)) return false;
  return !args.sums_of_c || (gradient && !args.sums_of_a);
}

void gemm_cuda(const Stream& stream, const GemmArgs& args) {
  if (!gemm_cuda_offers(stream, args))
    throw Error(ExitCode::other, "a product with an epilogue that is not offered");
  host_cuda::queue(static_cast<cudaStream_t>(stream.native()), [args] {
    for (std::int64_t h = 0; h < args.batch; ++h) multiply(args.matrix(h));
  });
}

}  // namespace choir
