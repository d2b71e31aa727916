#include "src/nn/layers/convolutions.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "choir/nn/layers/norms.hpp"
#include "choir/nn/stream_state.hpp"
#include "choir/ops/activation.hpp"
#include "kernels/activation/activation.hpp"
#include "kernels/depthwise_conv/depthwise_conv.hpp"
#include "kernels/fused_bias/fused_bias.hpp"
#include "kernels/strided_conv/strided_conv.hpp"
#include "src/nn/axes/tensor_axis.hpp"

namespace choir {
namespace {

Linear::Options pointwise_options(const ConvolutionModule::Options& o) {
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
      input_(parameters, name + ".input", options.width, 2 * options.width,
             pointwise_options(options)),
      weight_(&parameters.add(
          {.name = name + ".depthwise.weight",
           .shape = {options.width, options.kernel},
           .init = Init::normal(1 / std::sqrt(3.0 * static_cast<double>(options.kernel))),
           .decay = true,
           .use = Use::hidden,
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

void ConvolutionModule::remember(Pass& pass, StreamState& state, std::int64_t chunk) const {
  CHOIR_CHECK(options_.causal && !options_.batch_norm, "a convolution that cannot stream");
  const std::int64_t before = options_.kernel - 1;
  state.add(pass, this,
            {.width = weight_->local[0], .most = before, .chunk = chunk, .zeros = before},
            "convolution history");
}

Tensor ConvolutionModule::history(Pass& pass, const Tensor& gated) const {
  StreamState* const state = pass.sequence().state;
  const std::int64_t before = options_.kernel - 1, width = gated.shape.back();
  if (!state || before == 0) return {};
  const StreamState::Rows rows = state->append(pass, this, {gated.data, width});
  const Shape shape{state->streams(), before, width};
  if (state->streams() == 1) return Tensor().view(rows.first.slice(0, before).reshaped(shape));
  Tensor frames = pass.allocate(shape, "convolution history");
  ops::copy_rows(pass.stream(), frames.dtype, state->streams(), before * width,
                 {rows.first.data, rows.stride}, {frames.data, before * width});
  return frames;
}

Tensor ConvolutionModule::convolve(Pass& pass, const Tensor& gated) const {
  const Tensor before = history(pass, gated);
  const Sequence& sequence = pass.sequence();
  const Shape frames{sequence.batch, sequence.tokens, gated.shape.back()};
  Tensor convolved = pass.allocate(gated.shape, "convolved");
  ops::depthwise_conv_forward(
      pass.stream(), {.x = gated.TensorView::reshaped(frames),
                      .weight = weight_->value,
                      .bias = bias_->value,
                      .y = convolved.TensorView::reshaped(frames),
                      .lengths = sequence.lengths,
                      .left = options_.causal ? options_.kernel - 1 : (options_.kernel - 1) / 2,
                      .history = before});
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
  if (!options_.dropout_in_norm) dropout_.forward(pass, y);
  return y;
}

Tensor ConvolutionModule::backward(Pass& pass, const BranchGradient& d_y, ResidualNorm* source) {
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
  Tensor d = dropout_.backward_through(pass, d_y, output_);
  ops::activation_backward(pass.stream(), ops::Activation::silu, normed, d, d);
  normed.reset();
  d = norm_->backward(pass, convolved, statistics, d);
  Tensor gated = source ? Tensor() : pass.pop();
  const Tensor wide = pass.pop();
  if (source) gated = gate(pass, wide);
  d = convolve_backward(pass, gated, d);
  gated.reset();
  const Tensor d_wide = pass.allocate(wide.shape, "gate gradient");
  const Sequence& sequence = pass.sequence();
  const TensorView d_bias = input_.early_bias(pass);
  if (d_bias.empty()) {
    ops::glu_backward(pass.stream(), wide, d, d_wide, sequence.lengths, sequence.tokens);
  } else {
    const Tensor workspace = pass.scratch(
        ops::bias_gradient_workspace(pass.stream(), wide.shape.rows(), wide.shape.back()),
        "bias gradient");
    ops::glu_backward(pass.stream(), wide, d, d_wide, sequence.lengths, sequence.tokens,
                      {.d_bias = d_bias, .workspace = workspace});
  }
  d.reset();
  if (source) pass.save(source->remake(pass));
  return input_.backward(pass, d_wide, !d_bias.empty());
}

Tensor ConvolutionModule::convolve_backward(Pass& pass, const Tensor& gated,
                                            const Tensor& d_convolved) {
  const Sequence& sequence = pass.sequence();
  const Shape frames{sequence.batch, sequence.tokens, gated.shape.back()};
  Tensor d_gated = pass.allocate(gated.shape, "convolution gradient");
  // Batch normalisation removes whatever is added to every valid frame, so the gradient of the bias
  // is 0. A sum would yield rounding errors, which AdamW would amplify.
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

namespace {

/// Standard deviation of a uniform distribution within 1/sqrt(fan_in), PyTorch's default.
double fan_in_std(std::int64_t fan_in) {
  return 1 / std::sqrt(3.0 * static_cast<double>(fan_in));
}

std::int64_t frequencies_after(const ConvSubsampling::Options& o) {
  std::int64_t f = o.features;
  for (int k = 0; k < o.stages; ++k) f = ops::strided_size(f, o.causal);
  return f;
}

const std::int32_t* lengths_at(const TensorView& frame_lengths, int stage) {
  return static_cast<const std::int32_t*>(frame_lengths.data) + stage * frame_lengths.shape.back();
}

}  // namespace

ConvSubsampling::Conv ConvSubsampling::add_conv(ParameterSet& parameters,
                                                const std::string& name) const {
  return {.weight = &parameters.add({.name = name + ".weight",
                                     .shape = {options_.channels, 9},
                                     .init = Init::normal(fan_in_std(9)),
                                     .decay = true,
                                     .use = Use::hidden}),
          .bias = &parameters.add(
              {.name = name + ".bias", .shape = {options_.channels}, .init = Init::zeros()})};
}

ConvSubsampling::ConvSubsampling(ParameterSet& parameters, const std::string& name,
                                 const Options& options)
    : options_(options),
      first_(add_conv(parameters, name + ".conv")),
      stages_([&] {
        std::vector<Stage> stages;
        const std::int64_t channels = options.channels;
        for (int k = 1; k < options.stages; ++k) {
          const std::string number = "." + std::to_string(k);
          const Conv depthwise = add_conv(parameters, name + ".depthwise" + number);
          stages.push_back({depthwise, Linear(parameters, name + ".pointwise" + number, channels,
                                              channels, {.init_std = fan_in_std(channels)})});
        }
        return stages;
      }()),
      output_(parameters, name + ".output", frequencies_after(options) * options.channels,
              options.width,
              {.init_std = fan_in_std(frequencies_after(options) * options.channels)}),
      dropout_(name + ".dropout", options.dropout, options.factor) {}

Tensor ConvSubsampling::convolve(Pass& pass, const Conv& conv, const Tensor& x,
                                 const TensorView& frame_lengths, int stage) const {
  const auto half = [&](int dim) { return ops::strided_size(x.shape[dim], options_.causal); };
  Tensor y =
      pass.allocate({x.shape[0], half(1), half(2), options_.channels}, "subsampling convolution");
  ops::strided_conv_forward(pass.stream(), {.x = x,
                                            .weight = conv.weight->value,
                                            .bias = conv.bias->value,
                                            .y = y,
                                            .in_lengths = lengths_at(frame_lengths, stage),
                                            .out_lengths = lengths_at(frame_lengths, stage + 1),
                                            .causal = options_.causal,
                                            .relu = stage == 0});
  return y;
}

Tensor ConvSubsampling::forward(Pass& pass, const Tensor& features,
                                const TensorView& frame_lengths) {
  const Shape& in = features.shape;
  const Tensor x = features.reshaped({in[0], in[1], in[2], 1});
  pass.save(x);
  Tensor y = convolve(pass, first_, x, frame_lengths, 0);
  pass.save(y);
  for (std::size_t k = 0; k < stages_.size(); ++k) {
    const Tensor convolved =
        convolve(pass, stages_[k].depthwise, y, frame_lengths, static_cast<int>(k) + 1);
    y = stages_[k].pointwise.forward(
        pass, convolved.reshaped({convolved.shape.rows(), options_.channels}));
    ops::activation_forward(pass.stream(), ops::Activation::relu, y, y);
    y = y.reshaped(convolved.shape);
    pass.save(y);
  }
  const std::int64_t rows = y.shape[0] * y.shape[1];
  Tensor out = own_rows(pass, output_.forward(pass, y.reshaped({rows, y.count() / rows})));
  dropout_.forward(pass, out);
  return out;
}

Tensor ConvSubsampling::convolve_backward(Pass& pass, const Conv& conv, const Tensor& x,
                                          const Tensor& y, const Tensor& d_y,
                                          const TensorView& frame_lengths, int stage) const {
  const Tensor d_x = stage > 0 ? pass.allocate(x.shape, "subsampling gradient") : Tensor();
  SideGradient d_weight(pass, conv.weight), d_bias(pass, conv.bias);
  {
    const Tensor workspace =
        pass.scratch(ops::strided_conv_workspace(pass.stream(), d_y.shape), "subsampling gradient");
    ops::strided_conv_backward(pass.stream(), {.x = x,
                                               .weight = conv.weight->value,
                                               .y = y,
                                               .d_y = d_y,
                                               .d_x = d_x,
                                               .d_weight = d_weight.view(),
                                               .d_bias = d_bias.view(),
                                               .in_lengths = lengths_at(frame_lengths, stage),
                                               .out_lengths = lengths_at(frame_lengths, stage + 1),
                                               .causal = options_.causal,
                                               .relu = stage == 0,
                                               .workspace = workspace});
  }
  d_weight.finish(pass);
  d_bias.finish(pass);
  return d_x;
}

void ConvSubsampling::backward(Pass& pass, const Tensor& d_rows, const TensorView& frame_lengths) {
  Tensor d = output_.backward(pass, gather_rows(pass, dropout_.backward(pass, d_rows)));
  for (std::size_t k = stages_.size(); k-- > 0;) {
    Tensor y = pass.pop();
    d = d.reshaped(y.shape);
    // In place, because the gradient of the product has no other owner.
    const Shape shape = y.shape, rows{shape.rows(), options_.channels};
    const TensorView d_bias = stages_[k].pointwise.early_bias(pass);
    if (d_bias.empty()) {
      ops::activation_backward(pass.stream(), ops::Activation::relu, y, d, d);
    } else {
      const Tensor workspace = pass.scratch(
          ops::bias_gradient_workspace(pass.stream(), rows[0], rows[1]), "bias gradient");
      ops::activation_backward(pass.stream(), ops::Activation::relu, y.reshaped(rows),
                               d.reshaped(rows), d.reshaped(rows),
                               {.d_bias = d_bias, .workspace = workspace});
    }
    y.reset();
    d = stages_[k].pointwise.backward(pass, d.reshaped(rows), !d_bias.empty());
    const Tensor x = pass.pop();
    pass.save(x);
    d = convolve_backward(pass, stages_[k].depthwise, x, {}, d.reshaped(shape), frame_lengths,
                          static_cast<int>(k) + 1);
  }
  const Tensor y = pass.pop();
  const Tensor features = pass.pop();
  convolve_backward(pass, first_, features, y, d.reshaped(y.shape), frame_lengths, 0);
}

}  // namespace choir
