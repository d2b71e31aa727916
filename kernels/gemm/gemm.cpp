#include "choir/ops/gemm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "choir/device/cpu_device.hpp"
#include "choir/device/work_journal.hpp"
#include "choir/ops/activation.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/gemm/gemm.hpp"

namespace choir {

void count_product(const Stream& stream, const GemmArgs& args, double bytes) {
  const double flops = 2.0 * static_cast<double>(args.batch * args.m) *
                       static_cast<double>(args.n) * static_cast<double>(args.k);
  stream.count(flops, bytes);
  if (flops > 0) note_product(stream, args);
  if (WorkJournal* journal = journal_of(stream))
    journal->product({.in = args.in,
                      .transpose_a = args.transpose_a,
                      .transpose_b = args.transpose_b,
                      .batch = args.batch,
                      .m = args.m,
                      .n = args.n,
                      .k = args.k},
                     flops, bytes);
}

}  // namespace choir

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
  args.reads_b_once = options.reads_b_once;
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
         m * n * static_cast<double>(size_of(args.out)) *
             (1 + (args.accumulate ? 1 : 0) + (args.pre_activation ? 1 : 0));
}

/// A single library call, with the epilogue if `args` has one.
void multiply(const Stream& stream, const GemmArgs& args) {
  count_product(stream, args, bytes_of(args));
  if (stream.kind() == DeviceKind::null || args.m == 0 || args.n == 0) return;
  CHOIR_CHECK(args.k > 0, "gemm over an empty inner extent");
  if (stream.kind() == DeviceKind::cuda) {
    if (args.reads_b_once && cuda::gemm_few_rows(stream, args)) return;
    return gemm_cuda(stream, args);
  }
  gemm_cpu(stream.device().plans(), args);
}

bool fuses_anything(const GemmOptions& options) {
  return options.epilogue != GemmEpilogue::none || !options.pre_activation.empty();
}

void check_epilogue(const GemmArgs& args, const TensorView& c, const GemmOptions& options) {
  const bool gradient = options.epilogue == GemmEpilogue::gelu_tanh_gradient;
  CHOIR_CHECK(!args.accumulate, "a gemm that accumulates cannot have an epilogue");
  CHOIR_CHECK(!gradient || (!options.pre_activation.empty() && options.bias.empty()),
              "the gradient of gelu_tanh needs the pre-activation, and no bias");
  CHOIR_CHECK(options.epilogue != GemmEpilogue::none || options.pre_activation.empty(),
              "a pre-activation without an activation");
  check_optional(options.pre_activation, c.dtype, c.count(), "pre_activation");
}

/// Arguments of a single call to a GPU library; empty if a single call is not possible.
std::optional<GemmArgs> in_one_call(GemmArgs args, const GemmOptions& options) {
  args.epilogue = options.epilogue;
  args.pre_activation = options.pre_activation.data;
  // A library may use the processor's short tanh, which is accurate to 11 bits: less than f32.
  if (options.epilogue != GemmEpilogue::none && args.in == DType::f32) return {};
  return args;
}

/// Runs the product in one call if the device supports it; else returns false.
bool fused(const Stream& stream, const GemmArgs& args, const GemmOptions& options) {
  if (stream.device().plans_for() != DeviceKind::cuda || args.m == 0 || args.n == 0) return false;
  const std::optional<GemmArgs> whole = in_one_call(args, options);
  if (!whole) return false;
  note_product(stream, *whole);  // only the device shows if a library supports it
  if (stream.kind() != DeviceKind::cuda || !gemm_cuda_offers(stream, *whole)) return false;
  multiply(stream, *whole);
  return true;
}

/// Runs the product, then one op after the other.
void composed(const Stream& stream, GemmArgs args, const TensorView& c,
              const GemmOptions& options) {
  constexpr Activation kGelu = Activation::gelu_tanh;
  const bool forward = options.epilogue == GemmEpilogue::gelu_tanh;
  const TensorView& before =
      forward && !options.pre_activation.empty() ? options.pre_activation : c;
  args.c = before.data;
  multiply(stream, args);
  if (forward) activation_forward(stream, kGelu, before.reshaped(c.shape), c);
  if (options.epilogue == GemmEpilogue::gelu_tanh_gradient)
    activation_backward(stream, kGelu, options.pre_activation.reshaped(c.shape), c, c);
}

}  // namespace

void gemm(const Stream& stream, const TensorView& a, const TensorView& b, const TensorView& c,
          const GemmOptions& options) {
  const GemmArgs args = checked(a, b, c, options);
  if (!fuses_anything(options)) return multiply(stream, args);
  check_epilogue(args, c, options);
  if (!fused(stream, args, options)) composed(stream, args, c, options);
}

std::size_t gemm_device_bytes(DeviceKind kind) {
  return kind == DeviceKind::cuda ? kGemmCudaWorkspace : 0;
}

const char* gemm_library(DType dtype) {
  const char* library = onednn_version();
  if (!onednn_offers(dtype) && !(library && dtype == DType::f16))
    return size_of(dtype) == 2 ? "OpenBLAS (in f32)" : "OpenBLAS";
  static const std::string with_tiles = fmt::format("{} (AMX)", library);
  static const std::string shared = fmt::format("{} and OpenBLAS", library);
  if (dtype == DType::f32 && !cpu_features().avx512) return shared.c_str();
  static const std::string widened = fmt::format("{} (in f32)", library);
  if (dtype == DType::bf16 && cpu_features().amx_bf16) return with_tiles.c_str();
  return onednn_offers(dtype) ? library : widened.c_str();
}

}  // namespace choir::ops
