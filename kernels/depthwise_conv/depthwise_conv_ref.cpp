#include "kernels/cpu/frames.hpp"
#include "kernels/depthwise_conv/depthwise_conv.hpp"

namespace choir::ref {

void depthwise_conv_forward(const ops::DepthwiseConv& args) {
  const std::int64_t batch = args.x.shape[0], tokens = args.x.shape[1], width = args.x.shape[2];
  const std::int64_t taps = args.weight.shape[1];
  const double *x = args.x.as<double>(), *w = args.weight.as<double>();
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t frames = frames_of(args.lengths, b, tokens);
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t c = 0; c < width; ++c) {
        double sum = args.bias.empty() ? 0 : args.bias.as<double>()[c];
        for (std::int64_t i = 0; i < taps; ++i) {
          const std::int64_t from = t + i - args.left;
          if (from >= 0 && from < frames)
            sum += w[c * taps + i] * x[(b * tokens + from) * width + c];
          else if (from < 0 && !args.history.empty())
            sum += w[c * taps + i] *
                   args.history.as<double>()[(b * args.left + args.left + from) * width + c];
        }
        args.y.as<double>()[(b * tokens + t) * width + c] = t < frames ? sum : 0;
      }
  }
}

void depthwise_conv_backward(const ops::DepthwiseConvBackward& args) {
  const std::int64_t batch = args.x.shape[0], tokens = args.x.shape[1], width = args.x.shape[2];
  const std::int64_t taps = args.weight.shape[1];
  const double *x = args.x.as<double>(), *w = args.weight.as<double>();
  for (std::int64_t i = 0; i < args.d_x.count(); ++i) args.d_x.as<double>()[i] = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t frames = frames_of(args.lengths, b, tokens);
    for (std::int64_t t = 0; t < frames; ++t)
      for (std::int64_t c = 0; c < width; ++c) {
        const double g = args.d_y.as<double>()[(b * tokens + t) * width + c];
        if (!args.d_bias.empty()) args.d_bias.as<double>()[c] += g;
        for (std::int64_t i = 0; i < taps; ++i) {
          const std::int64_t from = t + i - args.left, at = (b * tokens + from) * width + c;
          if (from < 0 || from >= frames) continue;
          args.d_x.as<double>()[at] += g * w[c * taps + i];
          if (!args.d_weight.empty()) args.d_weight.as<double>()[c * taps + i] += g * x[at];
        }
      }
  }
}

}  // namespace choir::ref
