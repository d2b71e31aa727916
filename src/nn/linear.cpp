#include "choir/nn/linear.hpp"

#include <utility>

#include "choir/ops/gemm.hpp"

namespace choir {

Linear::Linear(ParameterSet& parameters, const std::string& name, std::int64_t inputs,
               std::int64_t outputs, const Options& options)
    : weight_(&parameters.add({.name = name + ".weight",
                               .shape = {outputs, inputs},
                               .init = Init::normal(options.init_std),
                               .decay = true,
                               .gradient_overwritten = true,
                               .shard = options.weight_shard})),
      inputs_(weight_->local[1]),
      outputs_(weight_->local[0]) {
  if (options.bias)
    bias_ = &parameters.add({.name = name + ".bias",
                             .shape = {outputs},
                             .init = Init::zeros(),
                             .shard = options.bias_shard});
}

Linear::Linear(Parameter& weight)
    : weight_(&weight), inputs_(weight.local[1]), outputs_(weight.local[0]) {}

TensorView Linear::bias(const Pass& pass) const {
  const bool elsewhere =
      row() && pass.tensor().rank() > 0 && !pass.breaks(NegativeControl::bias_everywhere);
  return bias_ && !elsewhere ? bias_->value : TensorView{};
}

Tensor Linear::forward(Pass& pass, const Tensor& x, bool keep_input) {
  const ops::GemmOptions options{.transpose_b = true, .bias = bias(pass)};
  if (row()) {
    Tensor terms = allocate_terms(pass, outputs_, "linear output");
    ops::gemm(pass.stream(), x, weight_->value, terms, options);
    if (keep_input) pass.save(x);
    return RowSum(pass, std::move(terms)).wait();
  }
  const Tensor rows = column() ? gather_rows(pass, x) : x;
  Tensor y = pass.allocate({rows.shape.rows(), outputs_}, "linear output");
  ops::gemm(pass.stream(), rows, weight_->value, y, options);
  if (keep_input) pass.save(x);
  return y;
}

Tensor Linear::backward(Pass& pass, const Tensor& d_y) {
  if (!column()) {
    Tensor x = pass.pop();
    Tensor d_rows = row() ? gather_rows(pass, d_y) : d_y;
    Tensor d_x = pass.allocate({d_rows.shape.rows(), inputs_}, "linear input gradient");
    ops::gemm(pass.stream(), d_rows, weight_->value, d_x);
    pass.weight_gradient({&Linear::weight_gradient, this, std::move(x), std::move(d_rows)});
    return d_x;
  }
  RowGather inputs(pass, pass.pop());
  Tensor terms = allocate_terms(pass, inputs_, "linear input gradient");
  ops::gemm(pass.stream(), d_y, weight_->value, terms);
  Tensor x = inputs.wait();
  RowSum sum(pass, std::move(terms));
  pass.weight_gradient({&Linear::weight_gradient, this, std::move(x), d_y});
  return sum.wait();
}

Tensor Linear::forward_gelu_tanh(Pass& pass, const Tensor& x, bool keep_input) {
  const Tensor rows = column() ? gather_rows(pass, x) : x;
  const Shape shape{rows.shape.rows(), outputs_};
  const Tensor before = pass.training() ? pass.allocate(shape, "pre-activation") : Tensor();
  Tensor y = pass.allocate(shape, "activation");
  ops::gemm(pass.stream(), rows, weight_->value, y,
            {.transpose_b = true,
             .bias = bias(pass),
             .epilogue = ops::GemmEpilogue::gelu_tanh,
             .pre_activation = before});
  if (keep_input) pass.save(x);
  pass.save(before);
  return y;
}

Tensor Linear::backward_gelu_tanh(Pass& pass, const Tensor& d_y) {
  Tensor x = pass.pop();
  const Tensor before = pass.pop();
  Tensor d_rows = row() ? gather_rows(pass, d_y) : d_y;
  Tensor d_before = pass.allocate(before.shape, "pre-activation gradient");
  ops::gemm(pass.stream(), d_rows, weight_->value, d_before,
            {.epilogue = ops::GemmEpilogue::gelu_tanh_gradient, .pre_activation = before});
  pass.weight_gradient({&Linear::weight_gradient, this, std::move(x), std::move(d_rows)});
  return d_before;
}

void Linear::multiply(Pass& pass, const TensorView& rows, const TensorView& y,
                      bool accumulate) const {
  ops::gemm(pass.stream(), rows, weight_->value, y,
            {.transpose_b = true, .accumulate = accumulate, .bias = bias(pass)});
}

void Linear::multiply_back(Pass& pass, const TensorView& d_y, const TensorView& d_rows,
                           bool accumulate) const {
  ops::gemm(pass.stream(), d_y, weight_->value, d_rows, {.accumulate = accumulate});
}

void Linear::weight_gradient(Pass& pass, void* self, const Tensor& x, const Tensor& d_y) {
  auto& layer = *static_cast<Linear*>(self);
  ops::GemmOptions options{.transpose_a = true, .accumulate = layer.weight_->accumulate()};
  Tensor workspace;
  if (layer.bias_) {
    workspace = pass.scratch(
        ops::gemm_sums_workspace(pass.stream(), d_y.shape.rows(), layer.outputs_), "bias gradient");
    options.sums_of_a = layer.bias_->gradient;
    options.workspace = workspace;
  }
  ops::gemm(pass.stream(), d_y, x, layer.weight_->gradient, options);
}

}  // namespace choir
