#include "choir/nn/layers/linear.hpp"

#include <cmath>
#include <optional>
#include <utility>

#include "choir/nn/axes/tensor_axis.hpp"
#include "choir/ops/activation.hpp"
#include "choir/ops/dropout.hpp"
#include "choir/ops/gemm.hpp"
#include "choir/ops/reduce.hpp"

namespace choir {
namespace {

/// A has the columns of the weight, B its rows (`dim`). Where the weight is cut along the other dim
/// the rank r inside B (A x) joins ranks, each of which has terms of the gradient of the factor.
ShardSpec factor_shard(const ShardSpec& weight, int dim) {
  CHOIR_CHECK(weight.tiles == 1, "an adapter of a layer in tiles");
  if (weight.split_dim < 0 || weight.split_dim == dim) return weight;
  ShardSpec whole{.partial = weight.partial};
  whole.partial.push_back(weight.axis);
  return whole;
}

void multiply_by_factor(Pass& pass, const TensorView& x, double factor) {
  if (factor != 1)
    ops::dropout(pass.stream(), {.in = x, .out = x, .factor = factor, .tokens = x.shape.rows()});
}

}  // namespace

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
  const std::int64_t rank = options.adapter.rank;
  if (rank == 0) return;
  const auto factor = [&](const char* suffix, const Shape& shape, const Init& init, int dim) {
    return &parameters.add({.name = name + suffix,
                            .shape = shape,
                            .init = init,
                            .decay = true,
                            .gradient_overwritten = true,
                            .shard = factor_shard(options.weight_shard, dim)});
  };
  const double std = 1 / std::sqrt(3.0 * static_cast<double>(inputs));
  adapter_ = {.a = factor(".adapter_a", {rank, inputs}, Init::normal(std), 1),
              .b = factor(".adapter_b", {outputs, rank}, Init::zeros(), 0),
              .factor = options.adapter.alpha / static_cast<double>(rank)};
}

Linear::Linear(Parameter& weight)
    : weight_(&weight),
      bucket_(weight.bucket),
      inputs_(weight.local[1]),
      outputs_(weight.local[0]) {}

TensorView Linear::bias(const Pass& pass) const {
  const bool elsewhere = row() && pass.tensor().rank() > 0;
  return bias_ && !elsewhere ? bias_->value : TensorView{};
}

Tensor Linear::forward(Pass& pass, const Tensor& x, bool keep_input) {
  const ops::GemmOptions options{.transpose_b = true, .bias = bias(pass)};
  if (row()) {
    Tensor terms = allocate_terms(pass, outputs_, "linear output");
    ops::gemm(pass.stream(), x, weight_->value, terms, options);
    adapt(pass, x, terms);
    if (keep_input) save_input(pass, x);
    return RowSum(pass, std::move(terms)).wait();
  }
  const Tensor rows = column() ? gather_rows(pass, x) : x;
  Tensor y = pass.allocate({rows.shape.rows(), outputs_}, "linear output");
  ops::gemm(pass.stream(), rows, weight_->value, y, options);
  adapt(pass, rows, y);
  if (keep_input) save_input(pass, x);
  return y;
}

Tensor Linear::backward(Pass& pass, const Tensor& d_y) {
  if (!column()) {
    Tensor x = pass.pop();
    Tensor d_rows = row() ? gather_rows(pass, d_y) : d_y;
    Tensor d_x = pass.allocate({d_rows.shape.rows(), inputs_}, "linear input gradient");
    ops::gemm(pass.stream(), d_rows, weight_->value, d_x);
    add_adapter_gradients(pass, x, d_rows, adapt_back(pass, d_rows, d_x));
    add_gradients(pass, std::move(x), std::move(d_rows));
    return d_x;
  }
  Tensor x = pass.pop();
  std::optional<RowGather> inputs;
  if (needs_input()) inputs.emplace(pass, std::exchange(x, Tensor()));
  Tensor terms = allocate_terms(pass, inputs_, "linear input gradient");
  ops::gemm(pass.stream(), d_y, weight_->value, terms);
  const Tensor d_narrow = adapt_back(pass, d_y, terms);
  if (inputs) x = inputs->wait();
  RowSum sum(pass, std::move(terms));
  add_adapter_gradients(pass, x, d_y, d_narrow);
  add_gradients(pass, std::move(x), d_y);
  return sum.wait();
}

Tensor Linear::forward_gelu_tanh(Pass& pass, const Tensor& x, bool keep_input) {
  const Tensor rows = column() ? gather_rows(pass, x) : x;
  const Shape shape{rows.shape.rows(), outputs_};
  const bool keeps = pass.training() || adapted();
  const Tensor before = keeps ? pass.allocate(shape, "pre-activation") : Tensor();
  Tensor y = pass.allocate(shape, "activation");
  if (adapted()) {  // between the product and its activation
    ops::gemm(pass.stream(), rows, weight_->value, before,
              {.transpose_b = true, .bias = bias(pass)});
    adapt(pass, rows, before);
    ops::activation_forward(pass.stream(), ops::Activation::gelu_tanh, before, y);
  } else {
    ops::gemm(pass.stream(), rows, weight_->value, y,
              {.transpose_b = true,
               .bias = bias(pass),
               .epilogue = ops::GemmEpilogue::gelu_tanh,
               .pre_activation = before});
  }
  if (keep_input) save_input(pass, x);
  pass.save(before);
  return y;
}

Tensor Linear::backward_gelu_tanh(Pass& pass, const Tensor& d_y) {
  Tensor x = pass.pop();
  const Tensor before = pass.pop();
  Tensor d_rows = row() ? gather_rows(pass, d_y) : d_y;
  Tensor d_before = pass.allocate(before.shape, "pre-activation gradient");
  if (adapted()) {
    ops::gemm(pass.stream(), d_rows, weight_->value, d_before);
    add_adapter_gradients(pass, x, d_rows, adapt_back(pass, d_rows, d_before));
    ops::activation_backward(pass.stream(), ops::Activation::gelu_tanh, before, d_before, d_before);
  } else {
    ops::gemm(pass.stream(), d_rows, weight_->value, d_before,
              {.epilogue = ops::GemmEpilogue::gelu_tanh_gradient, .pre_activation = before});
  }
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

Tensor Linear::narrow(Pass& pass, const TensorView& rows) const {
  Tensor h = pass.allocate({rows.shape.rows(), adapter_.a->local[0]}, "adapter");
  ops::gemm(pass.stream(), rows, adapter_.a->value, h, {.transpose_b = true});
  multiply_by_factor(pass, h, adapter_.factor);
  return h;
}

// Terms of A x need no sum of their own: B is linear, and what it makes of them is summed anyway.
void Linear::adapt(Pass& pass, const TensorView& rows, const TensorView& y) const {
  if (!adapted()) return;
  ops::gemm(pass.stream(), narrow(pass, rows), adapter_.b->value, y,
            {.transpose_b = true, .accumulate = true});
}

Tensor Linear::adapt_back(Pass& pass, const TensorView& d_y, const TensorView& d_rows) const {
  if (!adapted()) return {};
  Tensor d_narrow = pass.allocate({d_y.shape.rows(), adapter_.b->local[1]}, "adapter gradient");
  ops::gemm(pass.stream(), d_y, adapter_.b->value, d_narrow);
  multiply_by_factor(pass, d_narrow, adapter_.factor);
  ops::gemm(pass.stream(), d_narrow, adapter_.a->value, d_rows, {.accumulate = true});
  return d_narrow;
}

// A x is made again, here where values are at hand: when a postponed gradient runs they may not be.
void Linear::add_adapter_gradients(Pass& pass, const Tensor& rows, const Tensor& d_y,
                                   const Tensor& d_narrow) {
  if (!adapted()) return;
  if (adapter_.a->trainable)
    pass.weight_gradient({&Linear::factor_gradient, adapter_.a, rows, d_narrow});
  if (adapter_.b->trainable)
    pass.weight_gradient({&Linear::factor_gradient, adapter_.b, narrow(pass, rows), d_y});
}

void Linear::factor_gradient(Pass& pass, void* factor, const Tensor& x, const Tensor& d_y) {
  auto& parameter = *static_cast<Parameter*>(factor);
  ops::gemm(pass.stream(), d_y, x, parameter.gradient,
            {.transpose_a = true, .accumulate = parameter.accumulate()});
}

}  // namespace choir
