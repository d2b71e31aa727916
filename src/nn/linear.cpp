#include "choir/nn/linear.hpp"

#include "choir/ops/gemm.hpp"
#include "choir/ops/reduce.hpp"

namespace choir {

Linear::Linear(ParameterSet& parameters, const std::string& name, std::int64_t inputs,
               std::int64_t outputs, const Options& options)
    : weight_(&parameters.add({.name = name + ".weight",
                               .shape = {outputs, inputs},
                               .init = Init::normal(options.init_std),
                               .decay = true,
                               .gradient_overwritten = true,
                               .shard = options.weight_shard})),
      inputs_(inputs),
      outputs_(outputs) {
  if (options.bias)
    bias_ = &parameters.add({.name = name + ".bias",
                             .shape = {outputs},
                             .init = Init::zeros(),
                             .shard = options.bias_shard});
}

Linear::Linear(Parameter& weight)
    : weight_(&weight), inputs_(weight.shape[1]), outputs_(weight.shape[0]) {}

Tensor Linear::forward(Pass& pass, const Tensor& x) {
  Tensor y = pass.allocate({x.shape.rows(), outputs_}, "linear output");
  ops::gemm(pass.stream(), x, weight_->value, y,
            {.transpose_b = true, .bias = bias_ ? bias_->value : TensorView{}});
  pass.save(x);
  return y;
}

Tensor Linear::backward(Pass& pass, const Tensor& d_y) {
  Tensor x = pass.pop();
  Tensor d_x = pass.allocate({d_y.shape.rows(), inputs_}, "linear input gradient");
  ops::gemm(pass.stream(), d_y, weight_->value, d_x);
  pass.weight_gradient({&Linear::weight_gradient, this, std::move(x), d_y});
  return d_x;
}

void Linear::weight_gradient(Pass& pass, void* self, const Tensor& x, const Tensor& d_y) {
  auto& layer = *static_cast<Linear*>(self);
  ops::gemm(pass.stream(), d_y, x, layer.weight_->gradient,
            {.transpose_a = true, .accumulate = layer.weight_->accumulate()});
  if (!layer.bias_) return;
  const Tensor workspace =
      pass.scratch(ops::bias_gradient_workspace(pass.stream(), d_y.shape.rows(), layer.outputs_),
                   "bias gradient");
  ops::bias_gradient(pass.stream(), d_y, layer.bias_->gradient, workspace);
}

}  // namespace choir
