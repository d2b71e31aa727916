#include "kernels/activation/activation.hpp"
#include "kernels/cpu/ref_element.hpp"
#include "kernels/gemm/gemm.hpp"

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
  constexpr auto kGelu = ops::Activation::gelu_tanh;
  const auto view = [](double& one) { return TensorView{&one, DType::f64, {1, 1}}; };
  double result = x;
  if (args.epilogue == ops::GemmEpilogue::gelu_tanh) {
    if (args.pre_activation) store(args.pre_activation, args.out, at, x);
    activation_forward(kGelu, view(x), view(result));
  } else if (args.epilogue == ops::GemmEpilogue::gelu_tanh_gradient) {
    double before = load(args.pre_activation, args.out, at);
    activation_backward(kGelu, view(before), view(x), view(result));
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
