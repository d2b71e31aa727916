#include "choir/nn/linear.hpp"

#include <optional>
#include <utility>

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
      inputs_(weight_->local[1]),
      outputs_(weight_->local[0]) {
  if (options.bias)
    bias_ = &parameters.add({.name = name + ".bias",
                             .shape = {outputs},
                             .init = Init::zeros(),
                             .shard = options.bias_shard});
  bucket_ = weight_->bucket;
}

Linear::Linear(Parameter& weight)
    : weight_(&weight),
      bucket_(weight.bucket),
      inputs_(weight.local[1]),
      outputs_(weight.local[0]) {}

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
    if (keep_input) save_input(pass, x);
    return RowSum(pass, std::move(terms)).wait();
  }
  const Tensor rows = column() ? gather_rows(pass, x) : x;
  Tensor y = pass.allocate({rows.shape.rows(), outputs_}, "linear output");
  ops::gemm(pass.stream(), rows, weight_->value, y, options);
  if (keep_input) save_input(pass, x);
  return y;
}

Tensor Linear::backward(Pass& pass, const Tensor& d_y) {
  if (!column()) {
    Tensor x = pass.pop();
    Tensor d_rows = row() ? gather_rows(pass, d_y) : d_y;
    Tensor d_x = pass.allocate({d_rows.shape.rows(), inputs_}, "linear input gradient");
    ops::gemm(pass.stream(), d_rows, weight_->value, d_x);
    add_gradients(pass, std::move(x), std::move(d_rows));
    return d_x;
  }
  Tensor x = pass.pop();
  std::optional<RowGather> inputs;
  if (weight_->trainable) inputs.emplace(pass, std::exchange(x, Tensor()));
  Tensor terms = allocate_terms(pass, inputs_, "linear input gradient");
  ops::gemm(pass.stream(), d_y, weight_->value, terms);
  if (inputs) x = inputs->wait();
  RowSum sum(pass, std::move(terms));
  add_gradients(pass, std::move(x), d_y);
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
  if (keep_input) save_input(pass, x);
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
  add_gradients(pass, std::move(x), std::move(d_rows));
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
  Tensor workspace;
  if (layer.trains_bias())
    workspace = pass.scratch(
        ops::gemm_sums_workspace(pass.stream(), d_y.shape.rows(), layer.outputs_), "bias gradient");
  if (!layer.weight_->trainable)
    return ops::bias_gradient(pass.stream(), d_y, layer.bias_->gradient, workspace);
  ops::GemmOptions options{.transpose_a = true, .accumulate = layer.weight_->accumulate()};
  if (layer.trains_bias()) {
    options.sums_of_a = layer.bias_->gradient;
    options.workspace = workspace;
  }
  ops::gemm(pass.stream(), d_y, x, layer.weight_->gradient, options);
}

}  // namespace choir
