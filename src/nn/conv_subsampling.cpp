#include "choir/nn/conv_subsampling.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "choir/nn/side_gradient.hpp"
#include "choir/nn/tensor_axis.hpp"
#include "choir/ops/activation.hpp"
#include "choir/ops/strided_conv.hpp"

namespace choir {
namespace {

/// Of a uniform distribution within 1/sqrt(fan_in), PyTorch's default.
double init_std(std::int64_t fan_in) {
  return 1 / std::sqrt(3.0 * static_cast<double>(fan_in));
}

std::int64_t frequencies_after(const ConvSubsampling::Options& o) {
  std::int64_t f = o.features;
  for (int k = 0; k < o.stages; ++k) f = ops::strided_size(f, o.causal);
  return f;
}

const std::int32_t* lengths_at(const Pass& pass, const TensorView& frame_lengths, int stage) {
  if (stage == 1 && pass.breaks(NegativeControl::mask_left_out)) return nullptr;
  return static_cast<const std::int32_t*>(frame_lengths.data) + stage * frame_lengths.shape.back();
}

}  // namespace

ConvSubsampling::Conv ConvSubsampling::add_conv(ParameterSet& parameters,
                                                const std::string& name) const {
  return {.weight = &parameters.add({.name = name + ".weight",
                                     .shape = {options_.channels, 9},
                                     .init = Init::normal(init_std(9)),
                                     .decay = true}),
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
                                              channels, {.init_std = init_std(channels)})});
        }
        return stages;
      }()),
      output_(parameters, name + ".output", frequencies_after(options) * options.channels,
              options.width, {.init_std = init_std(frequencies_after(options) * options.channels)}),
      dropout_(name + ".dropout", options.dropout, options.factor) {}

Tensor ConvSubsampling::convolve(Pass& pass, const Conv& conv, const Tensor& x,
                                 const TensorView& frame_lengths, int stage) const {
  const auto half = [&](int dim) { return ops::strided_size(x.shape[dim], options_.causal); };
  Tensor y =
      pass.allocate({x.shape[0], half(1), half(2), options_.channels}, "subsampling convolution");
  ops::strided_conv_forward(pass.stream(),
                            {.x = x,
                             .weight = conv.weight->value,
                             .bias = conv.bias->value,
                             .y = y,
                             .in_lengths = lengths_at(pass, frame_lengths, stage),
                             .out_lengths = lengths_at(pass, frame_lengths, stage + 1),
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
    ops::strided_conv_backward(pass.stream(),
                               {.x = x,
                                .weight = conv.weight->value,
                                .y = y,
                                .d_y = d_y,
                                .d_x = d_x,
                                .d_weight = d_weight.view(),
                                .d_bias = d_bias.view(),
                                .in_lengths = lengths_at(pass, frame_lengths, stage),
                                .out_lengths = lengths_at(pass, frame_lengths, stage + 1),
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
    // In place: the product's gradient is nobody else's.
    ops::activation_backward(pass.stream(), ops::Activation::relu, y, d, d);
    const Shape shape = y.shape;
    y.reset();
    d = stages_[k].pointwise.backward(pass, d.reshaped({shape.rows(), options_.channels}));
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
