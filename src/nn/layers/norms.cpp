#include "choir/nn/layers/norms.hpp"

#include <utility>

#include "choir/nn/layers/linear.hpp"
#include "choir/nn/pass.hpp"
#include "choir/ops/norm.hpp"
#include "kernels/norm/batch_norm.hpp"
#include "kernels/norm/norm.hpp"
#include "kernels/sums/sums.hpp"

namespace choir {
namespace {

/// With sequence parallelism each rank sees only a share of the rows, so the gradient is a sum over
/// ranks. Heads of a row are divided like those of attention.
ShardSpec shard_of(const ParameterSet& parameters, std::int64_t width,
                   const ResidualNorm::Options& options) {
  ShardSpec spec;
  if (options.heads_of_row > 0)
    return {.split_dim = 0, .sections = {{width, options.heads_of_row}}};
  if (parameters.tensor().sequence || (options.of_heads && parameters.tensor().ranks > 1))
    spec.partial = {Axis::tensor};
  return spec;
}

}  // namespace

Tensor joined(Pass& pass, ResidualStream stream) {
  if (stream.delta.empty()) return std::move(stream.residual);
  CHOIR_CHECK(stream.dropout == nullptr, "a sum without a norm has no dropout");
  const Tensor sum =
      stream.delta.sole_owner() ? stream.delta : pass.allocate(stream.delta.shape, "residual sum");
  ops::add(pass.stream(), stream.residual, stream.delta, sum);
  return sum;
}

ResidualNorm::ResidualNorm(ParameterSet& parameters, const std::string& name, std::int64_t width,
                           const Options& options)
    : options_(options),
      weight_(&parameters.add({.name = name + ".weight",
                               .shape = {width},
                               .init = options.one_plus_weight ? Init::zeros() : Init::ones(),
                               .shard = shard_of(parameters, width, options)})) {
  width_ = weight_->local_count();
  CHOIR_CHECK(!divided() || !options.bias, "a divided row has no bias");
  if (options.bias && options.kind == ops::Norm::layernorm)
    bias_ = &parameters.add({.name = name + ".bias",
                             .shape = {width},
                             .init = Init::zeros(),
                             .shard = shard_of(parameters, width, options)});
}

ResidualNorm::Output ResidualNorm::forward(Pass& pass, const ResidualStream& stream,
                                           bool keep_statistics) {
  const std::int64_t rows = stream.residual.shape.rows();
  Output out;
  out.normed = pass.allocate({rows, width_}, "norm output");
  if (!stream.delta.empty()) out.sum = pass.allocate({rows, width_}, "residual");
  Tensor rstd = pass.allocate_statistic({rows}, "norm rstd");
  Tensor mean = has_mean() ? pass.allocate_statistic({rows}, "norm mean") : Tensor();
  if (divided()) {
    forward_divided(pass, stream.residual, out, mean, rstd);
  } else {
    const ops::NormForward call{.kind = options_.kind,
                                .residual = stream.residual,
                                .delta = stream.delta,
                                .weight = weight_->value,
                                .bias = bias_ ? bias_->value : TensorView{},
                                .sum = out.sum,
                                .out = out.normed,
                                .mean = mean,
                                .rstd = rstd,
                                .eps = options_.eps,
                                .offset = offset()};
    std::optional<ops::Dropout> dropout;
    if (stream.dropout) {
      Tensor delta = stream.delta;
      dropout = stream.dropout->whole_call(pass, delta, delta);
      if (!dropout) stream.dropout->forward(pass, delta);
    }
    if (dropout)
      ops::norm_forward(pass.stream(), call, *dropout);
    else
      ops::norm_forward(pass.stream(), call);
  }
  if (stream.delta.empty()) out.sum = stream.residual;
  pass.save(out.sum);
  const Pass::Unsaved sum_alone(pass, !keep_statistics);
  pass.save(rstd);
  if (has_mean()) pass.save(mean);
  return out;
}

void ResidualNorm::forward_divided(Pass& pass, const Tensor& x, const Output& out,
                                   const Tensor& mean, const Tensor& rstd) const {
  CHOIR_CHECK(out.sum.empty(), "a divided row is not added to another");
  const TensorAxis& axis = pass.tensor();
  const std::int64_t rows = x.shape.rows();
  const Tensor moments = pass.allocate_statistic({axis.size(), rows, 2}, "moments of all ranks");
  ops::split_norm_moments(pass.stream(), x, moments.slice(axis.rank(), 1), options_.kind);
  axis.communicator->all_gather(moments.data, static_cast<std::size_t>(2 * rows), moments.dtype);
  ops::split_norm_forward(pass.stream(), {.x = x,
                                          .moments = moments,
                                          .weight = weight_->value,
                                          .bias = {},
                                          .out = out.normed,
                                          .mean = mean,
                                          .rstd = rstd,
                                          .eps = options_.eps,
                                          .offset = offset()});
}

void ResidualNorm::backward_divided(Pass& pass, ops::NormBackward call) const {
  CHOIR_CHECK(!call.accumulate, "a divided row is not part of a stream");
  const TensorAxis& axis = pass.tensor();
  const Tensor sums = pass.allocate_statistic({call.sum.shape.rows(), 2}, "sums of a divided norm");
  const ops::SplitNormBackward split{.d_out = call.d_out,
                                     .x = call.sum,
                                     .weight = call.weight,
                                     .mean = call.mean,
                                     .rstd = call.rstd,
                                     .sums = sums,
                                     .width = axis.size() * width_,
                                     .d_x = call.d_sum,
                                     .d_weight = call.d_weight,
                                     .d_bias = {},
                                     .workspace = call.workspace,
                                     .kind = options_.kind,
                                     .offset = offset()};
  ops::split_norm_sums(pass.stream(), split);
  axis.communicator->all_reduce(sums.data, static_cast<std::size_t>(sums.count()), sums.dtype,
                                ReduceOp::sum, axis.order);
  ops::split_norm_backward(pass.stream(), split);
}

Tensor ResidualNorm::remake(Pass& pass) {
  return forward(pass, {pass.pop(), Tensor()}).normed;
}

Tensor ResidualNorm::backward(Pass& pass, const Tensor& d_normed, Tensor d_sum) {
  return backward(pass, d_normed, std::move(d_sum), {}).d_sum;
}

ResidualNorm::Gradients ResidualNorm::backward(Pass& pass, const Tensor& d_normed, Tensor d_sum,
                                               const BranchEnd& branch) {
  const Tensor mean = has_mean() ? pass.pop() : Tensor();
  const Tensor rstd = pass.pop();
  const Tensor sum = pass.pop();
  const bool accumulate = !d_sum.empty();
  if (!d_sum.sole_owner()) {  // empty, or still needed by a postponed weight gradient
    Tensor fresh = pass.allocate(sum.shape, "residual gradient");
    if (accumulate) ops::copy(pass.stream(), d_sum, fresh);
    d_sum = std::move(fresh);
  }
  // The kernel needs memory for the sums of the weight, frozen or not, and may omit those of the
  // bias.
  SideGradient d_weight(pass, weight_, SideGradient::Frozen::discarded), d_bias(pass, bias_);
  std::optional<ops::Dropout> dropout;
  Tensor d_branch;
  if (branch.dropout && (dropout = branch.dropout->whole_call(pass, d_sum, d_sum))) {
    d_branch = pass.allocate(sum.shape, "dropout gradient");
    dropout->out = d_branch;
  }
  const auto bytes = dropout     ? ops::dropped_norm_workspace
                     : divided() ? ops::split_norm_workspace
                                 : ops::norm_workspace;
  const Tensor workspace =
      pass.scratch(bytes(pass.stream(), sum.shape.rows(), width_), "norm gradient");
  const ops::NormBackward call{.kind = options_.kind,
                               .d_out = d_normed,
                               .sum = sum,
                               .weight = weight_->value,
                               .mean = mean,
                               .rstd = rstd,
                               .d_sum = d_sum,
                               .accumulate = accumulate,
                               .d_weight = d_weight.view(),
                               .d_bias = d_bias.view(),
                               .workspace = workspace,
                               .offset = offset()};
  TensorView branch_bias;
  if (dropout) {
    if (branch.output) branch_bias = branch.output->early_bias(pass);
    ops::norm_backward(pass.stream(), call,
                       {.dropout = *dropout, .d_bias = branch_bias, .workspace = workspace});
  } else if (divided()) {
    backward_divided(pass, call);
  } else {
    ops::norm_backward(pass.stream(), call);
  }
  d_weight.finish(pass);
  d_bias.finish(pass);
  if (!dropout) return {d_sum, d_sum};
  return {std::move(d_sum), {std::move(d_branch), true, !branch_bias.empty()}};
}

ChannelNorm::ChannelNorm(ParameterSet& parameters, const std::string& name, std::int64_t width,
                         double eps)
    : width_(width),
      eps_(eps),
      weight_(&parameters.add({.name = name + ".weight",
                               .shape = {width},
                               .init = Init::ones(),
                               .shard = {.split_dim = 0}})),
      bias_(&parameters.add({.name = name + ".bias",
                             .shape = {width},
                             .init = Init::zeros(),
                             .shard = {.split_dim = 0}})) {}

ChannelNorm::Statistics ChannelLayerNorm::statistics(Pass& pass, const Tensor& x) const {
  const std::int64_t rows = x.shape.rows();
  Statistics s{.mean = pass.allocate_statistic({rows}, "norm mean"),
               .rstd = pass.allocate_statistic({rows}, "norm rstd"),
               .moments = {}};
  const TensorAxis& axis = pass.tensor();
  if (axis.size() == 1) return s;
  s.moments = pass.allocate_statistic({axis.size(), rows, 2}, "moments of all ranks");
  ops::split_norm_moments(pass.stream(), x, s.moments.slice(axis.rank(), 1));
  axis.communicator->all_gather(s.moments.data, static_cast<std::size_t>(2 * rows),
                                s.moments.dtype);
  return s;
}

Tensor ChannelLayerNorm::forward(Pass& pass, const Tensor& x, const Statistics& statistics) const {
  Tensor out = pass.allocate(x.shape, "norm of channels");
  if (statistics.moments.empty())
    ops::norm_forward(pass.stream(), {.residual = x,
                                      .weight = weight_->value,
                                      .bias = bias_->value,
                                      .out = out,
                                      .mean = statistics.mean,
                                      .rstd = statistics.rstd,
                                      .eps = eps_});
  else
    ops::split_norm_forward(pass.stream(), {.x = x,
                                            .moments = statistics.moments,
                                            .weight = weight_->value,
                                            .bias = bias_->value,
                                            .out = out,
                                            .mean = statistics.mean,
                                            .rstd = statistics.rstd,
                                            .eps = eps_});
  return out;
}

Tensor ChannelLayerNorm::backward(Pass& pass, const Tensor& x, const Statistics& statistics,
                                  const Tensor& d_out) {
  const std::int64_t rows = x.shape.rows();
  Tensor d_x = pass.allocate(x.shape, "gradient of a norm of channels");
  constexpr auto kDiscarded = SideGradient::Frozen::discarded;
  SideGradient d_weight(pass, weight_, kDiscarded), d_bias(pass, bias_, kDiscarded);
  if (statistics.moments.empty()) {
    const Tensor workspace =
        pass.scratch(ops::norm_workspace(pass.stream(), rows, x.shape.back()), "norm gradient");
    ops::norm_backward(pass.stream(), {.d_out = d_out,
                                       .sum = x,
                                       .weight = weight_->value,
                                       .mean = statistics.mean,
                                       .rstd = statistics.rstd,
                                       .d_sum = d_x,
                                       .accumulate = false,
                                       .d_weight = d_weight.view(),
                                       .d_bias = d_bias.view(),
                                       .workspace = workspace});
  } else {
    const Tensor sums = pass.allocate_statistic({rows, 2}, "sums of a norm of channels");
    const Tensor workspace = pass.scratch(
        ops::split_norm_workspace(pass.stream(), rows, x.shape.back()), "norm gradient");
    const ops::SplitNormBackward call{.d_out = d_out,
                                      .x = x,
                                      .weight = weight_->value,
                                      .mean = statistics.mean,
                                      .rstd = statistics.rstd,
                                      .sums = sums,
                                      .width = width_,
                                      .d_x = d_x,
                                      .d_weight = d_weight.view(),
                                      .d_bias = d_bias.view(),
                                      .workspace = workspace};
    ops::split_norm_sums(pass.stream(), call);
    pass.tensor().communicator->all_reduce(sums.data, static_cast<std::size_t>(sums.count()),
                                           sums.dtype, ReduceOp::sum, pass.tensor().order);
    ops::split_norm_backward(pass.stream(), call);
  }
  d_weight.finish(pass);
  d_bias.finish(pass);
  return d_x;
}

ChannelBatchNorm::ChannelBatchNorm(ParameterSet& parameters, const std::string& name,
                                   std::int64_t width, double eps)
    : ChannelNorm(parameters, name, width, eps),
      running_(&parameters.add_running_statistics(name, *weight_)) {}

ChannelNorm::Statistics ChannelBatchNorm::statistics(Pass& pass, const Tensor& x) const {
  const Shape channels{x.shape.back()};
  return {.mean = pass.allocate_statistic(channels, "norm mean"),
          .rstd = pass.allocate_statistic(channels, "norm rstd"),
          .moments = {}};
}

Tensor ChannelBatchNorm::forward(Pass& pass, const Tensor& x, const Statistics& statistics) const {
  const std::int64_t channels = x.shape.back();
  Tensor out = pass.allocate(x.shape, "norm of channels");
  ops::BatchNorm call{.x = x,
                      .y = out,
                      .weight = weight_->value,
                      .bias = bias_->value,
                      .mean = statistics.mean,
                      .rstd = statistics.rstd,
                      .running_mean = running_->mean,
                      .running_variance = running_->variance,
                      .frames = {},
                      .lengths = pass.sequence().lengths,
                      .tokens = pass.sequence().tokens,
                      .eps = eps_,
                      .training = pass.training(),
                      .workspace = {}};
  if (!call.training) {
    ops::batch_norm_forward(pass.stream(), call);
    return out;
  }
  const Tensor workspace =
      pass.scratch(ops::batch_norm_workspace(pass.stream(), x.shape.rows(), channels), "norm");
  const bool recorded = pass.record() >= 0;
  const Tensor unrecorded =
      recorded ? Tensor() : pass.allocate_statistic({2, channels}, "norm, not recorded");
  const TensorView record =
      (recorded ? running_->records.slice(pass.record(), 1) : TensorView(unrecorded))
          .reshaped({2, channels});
  call.running_mean = record.slice(0, 1);
  call.running_variance = record.slice(1, 1);
  if (recorded) call.frames = running_->frames.slice(pass.record(), 1);
  call.workspace = workspace;
  ops::batch_norm_forward(pass.stream(), call);
  return out;
}

Tensor ChannelBatchNorm::backward(Pass& pass, const Tensor& x, const Statistics& statistics,
                                  const Tensor& d_out) {
  Tensor d_x = pass.allocate(x.shape, "gradient of a norm of channels");
  SideGradient d_weight(pass, weight_), d_bias(pass, bias_);
  {
    const Tensor workspace = pass.scratch(
        ops::batch_norm_workspace(pass.stream(), x.shape.rows(), x.shape.back()), "norm gradient");
    ops::batch_norm_backward(pass.stream(), {.x = x,
                                             .d_y = d_out,
                                             .weight = weight_->value,
                                             .mean = statistics.mean,
                                             .rstd = statistics.rstd,
                                             .d_x = d_x,
                                             .d_weight = d_weight.view(),
                                             .d_bias = d_bias.view(),
                                             .lengths = pass.sequence().lengths,
                                             .tokens = pass.sequence().tokens,
                                             .workspace = workspace});
  }
  d_weight.finish(pass);
  d_bias.finish(pass);
  return d_x;
}

}  // namespace choir
