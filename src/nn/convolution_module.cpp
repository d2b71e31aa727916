#include "choir/nn/convolution_module.hpp"

#include <cmath>

#include "choir/nn/channel_batch_norm.hpp"
#include "choir/nn/side_gradient.hpp"
#include "choir/ops/activation.hpp"
#include "choir/ops/depthwise_conv.hpp"
#include "choir/ops/glu.hpp"

namespace choir {
namespace {

Linear::Options input_options(const ConvolutionModule::Options& o) {
  const ShardSpec rows{.split_dim = 0, .sections = {{o.width}, {o.width}}};
  return {.init_std = o.init_std, .weight_shard = rows, .bias_shard = rows};
}

std::unique_ptr<ChannelNorm> make_norm(ParameterSet& parameters, const std::string& name,
                                       const ConvolutionModule::Options& o) {
  if (o.batch_norm)
    return std::make_unique<ChannelBatchNorm>(parameters, name, o.width, o.norm_eps);
  return std::make_unique<ChannelLayerNorm>(parameters, name, o.width, o.norm_eps);
}

}  // namespace

ConvolutionModule::ConvolutionModule(ParameterSet& parameters, const std::string& name,
                                     const Options& options)
    : options_(options),
      input_(parameters, name + ".input", options.width, 2 * options.width, input_options(options)),
      weight_(&parameters.add(
          {.name = name + ".depthwise.weight",
           .shape = {options.width, options.kernel},
           .init = Init::normal(1 / std::sqrt(3.0 * static_cast<double>(options.kernel))),
           .decay = true,
           .shard = {.split_dim = 0}})),
      bias_(&parameters.add({.name = name + ".depthwise.bias",
                             .shape = {options.width},
                             .init = Init::zeros(),
                             .shard = {.split_dim = 0}})),
      norm_(make_norm(parameters, name + ".norm", options)),
      output_(parameters, name + ".output", options.width, options.width,
              {.init_std = options.init_std, .weight_shard = {.split_dim = 1}}),
      dropout_(name + ".dropout", options.dropout) {}

Tensor ConvolutionModule::gate(Pass& pass, const Tensor& wide) const {
  Tensor gated = pass.allocate({wide.shape.rows(), wide.shape.back() / 2}, "gated");
  ops::glu_forward(pass.stream(), wide, gated, pass.sequence().lengths, pass.sequence().tokens);
  return gated;
}

Tensor ConvolutionModule::convolve(Pass& pass, const TensorView& gated,
                                   const TensorView& history) const {
  const Sequence& sequence = pass.sequence();
  const Shape frames{sequence.batch, sequence.tokens, gated.shape.back()};
  Tensor convolved = pass.allocate(gated.shape, "convolved");
  ops::depthwise_conv_forward(
      pass.stream(), {.x = gated.reshaped(frames),
                      .weight = weight_->value,
                      .bias = bias_->value,
                      .y = convolved.TensorView::reshaped(frames),
                      .lengths = sequence.lengths,
                      .left = options_.causal ? options_.kernel - 1 : (options_.kernel - 1) / 2,
                      .history = history});
  return convolved;
}

Tensor ConvolutionModule::activate(Pass& pass, const Tensor& normed) const {
  Tensor active = pass.allocate(normed.shape, "activation");
  ops::activation_forward(pass.stream(), ops::Activation::silu, normed, active);
  return active;
}

Tensor ConvolutionModule::forward(Pass& pass, const Tensor& x, ResidualNorm* source) {
  const Tensor wide = input_.forward(pass, x, source == nullptr);
  pass.save(wide);
  Tensor gated = gate(pass, wide);
  if (!source) pass.save(gated);
  const Tensor convolved = convolve(pass, gated);
  gated.reset();
  const ChannelNorm::Statistics statistics = norm_->statistics(pass, convolved);
  Tensor normed = norm_->forward(pass, convolved, statistics);
  pass.save(convolved);
  pass.save(statistics.mean);
  pass.save(statistics.rstd);
  pass.save(statistics.moments);
  if (!source) pass.save(normed);
  const Tensor active = activate(pass, normed);
  normed.reset();
  Tensor y = output_.forward(pass, active, source == nullptr);
  dropout_.forward(pass, y);
  return y;
}

RecentRows ConvolutionModule::make_past(Pass& pass, std::int64_t chunk) const {
  CHOIR_CHECK(options_.causal && !options_.batch_norm, "a convolution that cannot stream");
  return {pass, options_.kernel - 1, chunk, weight_->local[0], "convolution history"};
}

Tensor ConvolutionModule::forward_chunk(Pass& pass, const Tensor& x, RecentRows& past) {
  const Tensor gated = gate(pass, input_.forward(pass, x));
  const std::int64_t frames = gated.shape.rows(), before = options_.kernel - 1;
  const TensorView all = past.append(pass.stream(), frames, {gated.data, gated.shape.back()});
  const Tensor convolved =
      convolve(pass, all.slice(before, frames), before > 0 ? all.slice(0, before) : TensorView());
  const Tensor normed = norm_->forward(pass, convolved, norm_->statistics(pass, convolved));
  return output_.forward(pass, activate(pass, normed));
}

Tensor ConvolutionModule::backward(Pass& pass, const Tensor& d_y, ResidualNorm* source) {
  ChannelNorm::Statistics statistics;
  Tensor active = source ? Tensor() : pass.pop();
  Tensor normed = source ? Tensor() : pass.pop();
  statistics.moments = pass.pop();
  statistics.rstd = pass.pop();
  statistics.mean = pass.pop();
  const Tensor convolved = pass.pop();
  if (source) {
    normed = norm_->forward(pass, convolved, statistics);
    active = activate(pass, normed);
  }
  pass.save(active);
  active.reset();
  Tensor d = output_.backward(pass, dropout_.backward(pass, d_y));
  ops::activation_backward(pass.stream(), ops::Activation::silu, normed, d, d);
  normed.reset();
  d = norm_->backward(pass, convolved, statistics, d);
  Tensor gated = source ? Tensor() : pass.pop();
  const Tensor wide = pass.pop();
  if (source) gated = gate(pass, wide);
  d = convolve_backward(pass, gated, d);
  gated.reset();
  const Tensor d_wide = pass.allocate(wide.shape, "gate gradient");
  ops::glu_backward(pass.stream(), wide, d, d_wide, pass.sequence().lengths,
                    pass.sequence().tokens);
  d.reset();
  if (source) pass.save(source->remake(pass));
  return input_.backward(pass, d_wide);
}

Tensor ConvolutionModule::convolve_backward(Pass& pass, const Tensor& gated,
                                            const Tensor& d_convolved) {
  const Sequence& sequence = pass.sequence();
  const Shape frames{sequence.batch, sequence.tokens, gated.shape.back()};
  Tensor d_gated = pass.allocate(gated.shape, "convolution gradient");
  // What is added to every frame that counts batch normalisation takes away again: the gradient of
  // the bias is 0, where a sum would give rounding for AdamW to blow up.
  SideGradient d_weight(pass, weight_), d_bias(pass, options_.batch_norm ? nullptr : bias_);
  {
    const Tensor workspace =
        pass.scratch(ops::depthwise_conv_workspace(pass.stream(), frames, options_.kernel),
                     "convolution gradient");
    ops::depthwise_conv_backward(
        pass.stream(), {.x = gated.TensorView::reshaped(frames),
                        .weight = weight_->value,
                        .d_y = d_convolved.TensorView::reshaped(frames),
                        .d_x = d_gated.TensorView::reshaped(frames),
                        .d_weight = d_weight.view(),
                        .d_bias = d_bias.view(),
                        .lengths = sequence.lengths,
                        .left = options_.causal ? options_.kernel - 1 : (options_.kernel - 1) / 2,
                        .workspace = workspace});
  }
  d_weight.finish(pass);
  d_bias.finish(pass);
  return d_gated;
}

}  // namespace choir
