// Matrix products: checks and dispatch, products of many matrices, the keys by which a library
// plans products, and the fp64 reference.

#include "kernels/gemm/gemm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "choir/ops/activation.hpp"
#include "kernels/activation/activation.hpp"
#include "kernels/cpu/ref_element.hpp"
#include "kernels/dispatch.hpp"
#include "src/device/cpu_device.hpp"
#include "src/device/null_device.hpp"

namespace choir {

ops::Product product_of(const GemmArgs& args) {
  return {.m = args.m,
          .n = args.n,
          .k = args.k,
          .batch = args.batch,
          .stride_a = args.stride_a,
          .stride_b = args.stride_b,
          .stride_c = args.stride_c,
          .in = args.in,
          .out = args.out,
          .epilogue = args.epilogue,
          .transpose_a = args.transpose_a,
          .transpose_b = args.transpose_b,
          .accumulate = args.accumulate,
          .bias = args.bias != nullptr,
          .pre_activation = args.pre_activation != nullptr};
}

void note_product(const Stream& stream, const GemmArgs& args) {
  if (stream.kind() == DeviceKind::null)
    stream.device().plans().get<ops::ProductsAsked>().all.insert(product_of(args));
}

namespace ops {
namespace {

std::string stored(std::int64_t rows, std::int64_t columns, bool transposed) {
  return transposed ? fmt::format("[{},{}]^T", columns, rows)
                    : fmt::format("[{},{}]", rows, columns);
}

const char* name_of(GemmEpilogue epilogue) {
  switch (epilogue) {
    case GemmEpilogue::none:
      return "";
    case GemmEpilogue::gelu_tanh:
      return ", gelu_tanh";
    case GemmEpilogue::gelu_tanh_gradient:
      return ", gelu_tanh_gradient";
    case GemmEpilogue::gelu:
      return ", gelu";
    case GemmEpilogue::gelu_gradient:
      return ", gelu_gradient";
  }
  return "";
}

}  // namespace

std::string to_string(const Product& p) {
  std::string text = fmt::format("{} {} x {}", choir::name_of(p.in),
                                 stored(p.m, p.k, p.transpose_a), stored(p.k, p.n, p.transpose_b));
  if (p.out != p.in) text += fmt::format(" into {}", choir::name_of(p.out));
  if (p.batch > 1)
    text += fmt::format(", {} times, {} {} {} apart", p.batch, p.stride_a, p.stride_b, p.stride_c);
  if (p.accumulate) text += ", added";
  if (p.bias) text += ", bias";
  text += name_of(p.epilogue);
  if (p.pre_activation) text += ", pre-activation";
  return text;
}

double product_bytes(const Product& p) {
  const auto bytes = [](std::int64_t rows, std::int64_t columns, DType type) {
    return static_cast<double>(rows) * static_cast<double>(columns) *
           static_cast<double>(size_of(type));
  };
  const auto matrices = [&p](std::int64_t stride) {
    return p.batch > 1 && stride == 0 ? 1 : p.batch;
  };
  return bytes(matrices(p.stride_a) * p.m, p.k, p.in) +
         bytes(matrices(p.stride_b) * p.k, p.n, p.in) +
         bytes(p.batch * p.m, p.n, p.out) * (p.pre_activation ? 2 : 1);
}

std::vector<double> time_proposals(const Stream& stream, const Product& product) {
  if (stream.kind() != DeviceKind::cuda) return {};
  return time_cuda_proposals(stream, product);
}

void choose_products(Device& device, const ProductChoices& choices) {
  if (device.kind() == DeviceKind::cuda) choose_cuda_products(device, choices);
}

std::string product_library(const Device& device) {
  return device.kind() == DeviceKind::cuda ? cuda_product_library() : std::string();
}

}  // namespace ops

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

bool is_gradient(GemmEpilogue epilogue) {
  return epilogue == GemmEpilogue::gelu_tanh_gradient || epilogue == GemmEpilogue::gelu_gradient;
}

/// True for the epilogues that no library has, but a kernel of ours.
bool is_exact(GemmEpilogue epilogue) {
  return epilogue == GemmEpilogue::gelu || epilogue == GemmEpilogue::gelu_gradient;
}

/// A single call of a library, or of our kernel, with the epilogue if `args` has one.
void multiply(const Stream& stream, const GemmArgs& args) {
  count_product(stream, args, bytes_of(args));
  if (stream.kind() == DeviceKind::null || args.m == 0 || args.n == 0) return;
  CHOIR_CHECK(args.k > 0, "gemm over an empty inner extent");
  if (stream.kind() == DeviceKind::cuda) {
    if (is_exact(args.epilogue)) return cuda::gemm_gelu(stream, args);
    if (args.reads_b_once && cuda::gemm_few_rows(stream, args)) return;
    return gemm_cuda(stream, args);
  }
  gemm_cpu(stream.device().plans(), args);
}

bool fuses_anything(const GemmOptions& options) {
  return options.epilogue != GemmEpilogue::none || !options.pre_activation.empty();
}

void check_epilogue(const GemmArgs& args, const TensorView& c, const GemmOptions& options) {
  const bool gradient = is_gradient(options.epilogue);
  CHOIR_CHECK(!args.accumulate, "a gemm that accumulates cannot have an epilogue");
  CHOIR_CHECK(!gradient || (!options.pre_activation.empty() && options.bias.empty()),
              "the gradient of a GELU needs the pre-activation, and no bias");
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
  if (is_exact(options.epilogue)) {
    if (stream.kind() != DeviceKind::cuda || !cuda::gemm_gelu_offers(stream, *whole)) return false;
    multiply(stream, *whole);
    return true;
  }
  note_product(stream, *whole);  // only the device shows if a library supports it
  if (stream.kind() != DeviceKind::cuda || !gemm_cuda_offers(stream, *whole)) return false;
  multiply(stream, *whole);
  return true;
}

/// Runs the product, then one op after the other.
void composed(const Stream& stream, GemmArgs args, const TensorView& c,
              const GemmOptions& options) {
  const Activation gelu = is_exact(options.epilogue) ? Activation::gelu : Activation::gelu_tanh;
  const bool forward = !is_gradient(options.epilogue);
  const TensorView& before =
      forward && !options.pre_activation.empty() ? options.pre_activation : c;
  args.c = before.data;
  multiply(stream, args);
  if (forward) return activation_forward(stream, gelu, before.reshaped(c.shape), c);
  activation_backward(stream, gelu, options.pre_activation.reshaped(c.shape), c, c);
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

namespace {

/// The matrices of one operand: rows, columns, elements between matrices.
struct Matrices {
  std::int64_t rows, columns, stride;

  Matrices(const TensorView& x, std::int64_t batch, bool transposed)
      : rows(x.shape[x.shape.rank() - 2]), columns(x.shape.back()), stride(rows * columns) {
    CHOIR_CHECK(x.shape.rank() == 2 || (x.shape.rank() == 3 && x.shape[0] == batch),
                "{} in a product of {} matrices", to_string(x.shape), batch);
    if (x.shape.rank() == 2) stride = 0;
    if (transposed) std::swap(rows, columns);
  }
};

GemmArgs checked_batch(const TensorView& a, const TensorView& b, const TensorView& c,
                       const BatchedGemmOptions& options) {
  CHOIR_CHECK(c.shape.rank() == 3, "{} for products of matrices", to_string(c.shape));
  const std::int64_t batch = c.shape[0];
  const Matrices left(a, batch, options.transpose_a), right(b, batch, options.transpose_b);
  GemmArgs args{.m = c.shape[1], .n = c.shape[2], .k = left.columns};
  CHOIR_CHECK(left.rows == args.m && right.rows == args.k && right.columns == args.n,
              "products of {}{} and {}{} into {}", to_string(a.shape),
              options.transpose_a ? "^T" : "", to_string(b.shape), options.transpose_b ? "^T" : "",
              to_string(c.shape));
  const bool narrow = a.dtype == DType::bf16 || a.dtype == DType::f16;
  CHOIR_CHECK(b.dtype == a.dtype && (c.dtype == a.dtype || (narrow && c.dtype == DType::f32)),
              "products of {} and {} into {}", name_of(a.dtype), name_of(b.dtype),
              name_of(c.dtype));
  args.transpose_a = options.transpose_a, args.transpose_b = options.transpose_b;
  args.accumulate = options.accumulate;
  args.in = a.dtype, args.out = c.dtype;
  args.a = a.data, args.b = b.data, args.c = c.data;
  args.batch = batch;
  args.stride_a = left.stride, args.stride_b = right.stride, args.stride_c = args.m * args.n;
  return args;
}

}  // namespace

void gemm_batched(const Stream& stream, const TensorView& a, const TensorView& b,
                  const TensorView& c, const BatchedGemmOptions& options) {
  CHOIR_CHECK(!a.empty() && !b.empty() && !c.empty(), "products of an empty tensor");
  const GemmArgs args = checked_batch(a, b, c, options);
  count_product(stream, args,
                as_bytes(a) + as_bytes(b) + (options.accumulate ? 2 : 1) * as_bytes(c));
  if (stream.kind() == DeviceKind::null || c.count() == 0) return;
  CHOIR_CHECK(args.k > 0, "products over an empty inner extent");
  if (stream.kind() == DeviceKind::cuda) return gemm_cuda(stream, args);
  gemm_batched_cpu(stream.device().plans(), args);
}

}  // namespace choir::ops

namespace choir::ref {
namespace {

double product(const GemmArgs& args, std::int64_t i, std::int64_t j) {
  double sum = args.accumulate ? load(args.c, args.out, i * args.n + j) : 0;
  if (args.bias) sum += load(args.bias, args.in, j);
  for (std::int64_t p = 0; p < args.k; ++p) {
    const std::int64_t at_a = args.transpose_a ? p * args.m + i : i * args.k + p;
    const std::int64_t at_b = args.transpose_b ? j * args.k + p : p * args.n + j;
    sum += load(args.a, args.in, at_a) * load(args.b, args.in, at_b);
  }
  return sum;
}

double through_epilogue(const GemmArgs& args, std::int64_t at, double x) {
  using enum ops::GemmEpilogue;
  const bool exact = args.epilogue == gelu || args.epilogue == gelu_gradient;
  const ops::Activation kind = exact ? ops::Activation::gelu : ops::Activation::gelu_tanh;
  const auto view = [](double& one) { return TensorView{&one, DType::f64, {1, 1}}; };
  double result = x;
  if (args.epilogue == gelu_tanh || args.epilogue == gelu) {
    if (args.pre_activation) store(args.pre_activation, args.out, at, x);
    activation_forward(kind, view(x), view(result));
  } else if (args.epilogue != none) {
    double before = load(args.pre_activation, args.out, at);
    activation_backward(kind, view(before), view(x), view(result));
  }
  return result;
}

}  // namespace

void gemm(const GemmArgs& args) {
  for (std::int64_t i = 0; i < args.m; ++i)
    for (std::int64_t j = 0; j < args.n; ++j) {
      const std::int64_t at = i * args.n + j;
      store(args.c, args.out, at, through_epilogue(args, at, product(args, i, j)));
    }
}

}  // namespace choir::ref
