#include "choir/nn/residual_norm.hpp"

#include <utility>

#include "choir/nn/side_gradient.hpp"
#include "choir/ops/reduce.hpp"

namespace choir {
namespace {

/// Each rank sees a share of the rows.
ShardSpec shard_of(const ParameterSet& parameters) {
  ShardSpec spec;
  if (parameters.tensor().sequence) spec.partial = {Axis::tensor};
  return spec;
}

}  // namespace

ResidualNorm::ResidualNorm(ParameterSet& parameters, const std::string& name, std::int64_t width,
                           const Options& options)
    : options_(options),
      width_(width),
      weight_(&parameters.add({.name = name + ".weight",
                               .shape = {width},
                               .init = Init::ones(),
                               .shard = shard_of(parameters)})) {
  if (options.bias && options.kind == ops::Norm::layernorm)
    bias_ = &parameters.add({.name = name + ".bias",
                             .shape = {width},
                             .init = Init::zeros(),
                             .shard = shard_of(parameters)});
}

ResidualNorm::Output ResidualNorm::forward(Pass& pass, const ResidualStream& stream,
                                           bool keep_statistics) {
  const std::int64_t rows = stream.residual.shape.rows();
  const bool centred = options_.kind == ops::Norm::layernorm;
  Output out;
  out.normed = pass.allocate({rows, width_}, "norm output");
  if (!stream.delta.empty()) out.sum = pass.allocate({rows, width_}, "residual");
  Tensor rstd = pass.allocate_statistic({rows}, "norm rstd");
  Tensor mean = centred ? pass.allocate_statistic({rows}, "norm mean") : Tensor();
  ops::norm_forward(pass.stream(), {.kind = options_.kind,
                                    .residual = stream.residual,
                                    .delta = stream.delta,
                                    .weight = weight_->value,
                                    .bias = bias_ ? bias_->value : TensorView{},
                                    .sum = out.sum,
                                    .out = out.normed,
                                    .mean = mean,
                                    .rstd = rstd,
                                    .eps = options_.eps});
  if (stream.delta.empty()) out.sum = stream.residual;
  pass.save(out.sum);
  const Pass::Unsaved sum_alone(pass, !keep_statistics);
  pass.save(rstd);
  if (centred) pass.save(mean);
  return out;
}

Tensor ResidualNorm::remake(Pass& pass) {
  return forward(pass, {pass.pop(), Tensor()}).normed;
}

Tensor ResidualNorm::backward(Pass& pass, const Tensor& d_normed, Tensor d_sum) {
  const bool centred = options_.kind == ops::Norm::layernorm;
  const Tensor mean = centred ? pass.pop() : Tensor();
  const Tensor rstd = pass.pop();
  const Tensor sum = pass.pop();
  const bool accumulate = !d_sum.empty();
  if (!d_sum.sole_owner()) {  // empty, or still needed by a postponed weight gradient
    Tensor fresh = pass.allocate(sum.shape, "residual gradient");
    if (accumulate) ops::copy(pass.stream(), d_sum, fresh);
    d_sum = std::move(fresh);
  }
  // The kernel wants the sums of the weight, frozen or not, and may leave out those of the bias.
  SideGradient d_weight(pass, weight_, SideGradient::Frozen::discarded), d_bias(pass, bias_);
  const Tensor workspace =
      pass.scratch(ops::norm_workspace(pass.stream(), sum.shape.rows(), width_), "norm gradient");
  ops::norm_backward(pass.stream(), {.kind = options_.kind,
                                     .d_out = d_normed,
                                     .sum = sum,
                                     .weight = weight_->value,
                                     .mean = mean,
                                     .rstd = rstd,
                                     .d_sum = d_sum,
                                     .accumulate = accumulate,
                                     .d_weight = d_weight.view(),
                                     .d_bias = d_bias.view(),
                                     .workspace = workspace});
  d_weight.finish(pass);
  d_bias.finish(pass);
  return d_sum;
}

}  // namespace choir
