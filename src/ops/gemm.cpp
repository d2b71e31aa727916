#include "choir/ops/gemm.hpp"

#include <fmt/format.h>

#include <string>

#include "choir/device/cpu_device.hpp"
#include "kernels/gemm.hpp"

namespace choir::ops {
namespace {

void check_types(DType in, DType out) {
  const bool small = in == DType::bf16 || in == DType::f16;
  CHOIR_CHECK(in == DType::f64 || in == DType::f32 || small, "gemm of {}", name_of(in));
  CHOIR_CHECK(out == in || (small && out == DType::f32), "gemm of {} into {}", name_of(in),
              name_of(out));
}

GemmArgs checked(const TensorView& a, const TensorView& b, const TensorView& c,
                 const GemmOptions& options) {
  CHOIR_CHECK(!a.empty() && !b.empty() && !c.empty(), "gemm of an empty tensor");
  CHOIR_CHECK(a.dtype == b.dtype, "gemm of {} and {}", name_of(a.dtype), name_of(b.dtype));
  check_types(a.dtype, c.dtype);
  CHOIR_CHECK(a.shape.rank() >= 2 && b.shape.rank() >= 2 && c.shape.rank() >= 2,
              "gemm of {} and {} into {}", to_string(a.shape), to_string(b.shape),
              to_string(c.shape));
  GemmArgs args;
  args.m = c.shape.rows();
  args.n = c.shape.back();
  args.k = options.transpose_a ? a.shape.rows() : a.shape.back();
  args.transpose_a = options.transpose_a;
  args.transpose_b = options.transpose_b;
  args.accumulate = options.accumulate;
  args.in = a.dtype;
  args.out = c.dtype;
  const std::int64_t a_m = options.transpose_a ? a.shape.back() : a.shape.rows();
  const std::int64_t b_k = options.transpose_b ? b.shape.back() : b.shape.rows();
  const std::int64_t b_n = options.transpose_b ? b.shape.rows() : b.shape.back();
  CHOIR_CHECK(a_m == args.m && b_k == args.k && b_n == args.n, "gemm of {}{} and {}{} into {}",
              to_string(a.shape), options.transpose_a ? "^T" : "", to_string(b.shape),
              options.transpose_b ? "^T" : "", to_string(c.shape));
  if (!options.bias.empty())
    CHOIR_CHECK(options.bias.dtype == a.dtype && options.bias.count() == args.n,
                "bias {} of {} for {} columns", to_string(options.bias.shape),
                name_of(options.bias.dtype), args.n);
  args.a = a.data;
  args.b = b.data;
  args.bias = options.bias.data;
  args.c = c.data;
  return args;
}

double bytes_of(const GemmArgs& args) {
  const auto m = static_cast<double>(args.m), n = static_cast<double>(args.n);
  const auto k = static_cast<double>(args.k);
  return (m * k + k * n) * static_cast<double>(size_of(args.in)) +
         m * n * static_cast<double>(size_of(args.out)) * (args.accumulate ? 2 : 1);
}

}  // namespace

void gemm(const Stream& stream, const TensorView& a, const TensorView& b, const TensorView& c,
          const GemmOptions& options) {
  const GemmArgs args = checked(a, b, c, options);
  stream.count(
      2.0 * static_cast<double>(args.m) * static_cast<double>(args.n) * static_cast<double>(args.k),
      bytes_of(args));
  if (stream.kind() == DeviceKind::null || args.m == 0 || args.n == 0) return;
  CHOIR_CHECK(args.k > 0, "gemm over an empty inner extent");
  CHOIR_CHECK(stream.kind() == DeviceKind::cpu, "no gemm for the {} device",
              name_of(stream.kind()));
  gemm_cpu(stream.device().plans(), args);
}

const char* gemm_library(DType dtype) {
  const char* library = onednn_version();
  if (!onednn_offers(dtype) && !(library && dtype == DType::f16))
    return size_of(dtype) == 2 ? "OpenBLAS (in f32)" : "OpenBLAS";
  static const std::string with_tiles = fmt::format("{} (AMX)", library);
  static const std::string widened = fmt::format("{} (in f32)", library);
  if (dtype == DType::bf16 && cpu_features().amx_bf16) return with_tiles.c_str();
  return onednn_offers(dtype) ? library : widened.c_str();
}

}  // namespace choir::ops
