#include "choir/ops/product.hpp"

#include <fmt/format.h>

#include "kernels/gemm/gemm.hpp"

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
}  // namespace choir
