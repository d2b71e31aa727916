#include "choir/nn/channel_batch_norm.hpp"

#include "choir/nn/side_gradient.hpp"
#include "choir/ops/batch_norm.hpp"

namespace choir {

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
