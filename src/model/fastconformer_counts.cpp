// What a FastConformer says about itself.
#include <algorithm>

#include "choir/model/fastconformer.hpp"
#include "choir/ops/strided_conv.hpp"
#include "src/model/parameter_table.hpp"

namespace choir {
namespace {

double real(std::int64_t n) {
  return static_cast<double>(n);
}

/// FLOPs of the forward of the subsampling, products and convolutions.
double subsampling_flops(const FastConformerConfig& c, const BatchShape& shape) {
  const double channels = real(c.subsampling_channels);
  std::int64_t t = ops::mel_frames(c.mel, shape.audio_samples), f = c.mel.mels;
  double flops = 0;
  for (int k = 0; k < c.stages(); ++k) {
    t = ops::strided_size(t, c.causal), f = ops::strided_size(f, c.causal);
    flops += real(t * f) * channels * (18 + (k > 0 ? 2 * channels : 0));
  }
  return real(shape.samples) * (flops + 2 * real(t * f) * channels * real(c.n_embd));
}

/// Of a block: products, convolution, and attention over the keys that a frame can see.
double block_flops(const FastConformerConfig& c, const BatchShape& shape) {
  const double frames = real(c.frames(shape.audio_samples)), width = real(c.n_embd);
  const double feed_forward = 2 * 2 * 2 * width * real(c.hidden());
  const double attention = 2 * 4 * width * width, convolution = 2 * 3 * width * width;
  // Scores of content and of positions, and the sum of values.
  const double keys = 3 * 2 * frames * width;
  const double positions = 2 * 2 * width * width;  // 2T - 1 rows an utterance, once a batch
  return frames * (real(shape.samples) * (feed_forward + attention + convolution + keys +
                                          2 * real(c.conv_kernel) * width) +
                   positions);
}

double head_flops(const FastConformerConfig& c, const BatchShape& shape) {
  return real(shape.samples) * real(c.frames(shape.audio_samples)) * 2 * real(c.n_embd) *
         real(c.vocab_size + 1);
}

}  // namespace

ModelCosts FastConformer::unit_costs(const FastConformerConfig& c, const BatchShape& shape) {
  return {.embedding = subsampling_flops(c, shape),
          .layer = block_flops(c, shape),
          .head = head_flops(c, shape)};
}

double FastConformer::flops(const BatchShape& shape) const {
  const ModelCosts costs = unit_costs(config_, shape);
  return 3 * (costs.embedding + real(config_.n_layer) * costs.layer + costs.head);
}

std::int64_t FastConformer::encoder_parameters() const {
  std::int64_t count = 0;
  for (const Parameter* p : parameters_->all())
    if (p->name.starts_with("encoder.")) count += p->count();
  return count;
}

std::string FastConformer::describe() const {
  return parameter_table(*parameters_, "encoder.blocks", config_.n_layer, 44);
}

}  // namespace choir
