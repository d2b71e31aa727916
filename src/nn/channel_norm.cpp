#include "choir/nn/channel_norm.hpp"

#include "choir/nn/side_gradient.hpp"
#include "choir/ops/norm.hpp"
#include "choir/ops/split_norm.hpp"

namespace choir {

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
    if (!pass.breaks(NegativeControl::inner_norm_unsummed))
      pass.tensor().communicator->all_reduce(sums.data, static_cast<std::size_t>(sums.count()),
                                             sums.dtype, ReduceOp::sum, pass.tensor().order);
    ops::split_norm_backward(pass.stream(), call);
  }
  d_weight.finish(pass);
  d_bias.finish(pass);
  return d_x;
}

}  // namespace choir
