#include "choir/model/make_model.hpp"

#include "choir/model/gpt.hpp"
#if __has_include("choir/model/fastconformer.hpp")
#include "choir/model/fastconformer.hpp"
#define CHOIR_HAS_FASTCONFORMER 1
#endif

namespace choir {
namespace {

constexpr double kSeconds = 10;

// Products of matrices, of attention with its relative positions, and the convolutions.
ModelCosts fastconformer_costs(const FastConformerConfig& c) {
  const auto samples = static_cast<std::int64_t>(kSeconds * static_cast<double>(c.mel.sample_rate));
  const auto frames = static_cast<double>(c.frames(samples));
  const auto width = static_cast<double>(c.n_embd), hidden = static_cast<double>(c.hidden());
  const auto channels = static_cast<double>(c.subsampling_channels);
  const double weights = 2 * 2 * width * hidden +  // two feed-forward layers
                         5 * width * width +       // q, k, v, output, positions
                         3 * width * width;        // into the gates, and out
  const double attention = 6 * frames * width;     // by content and by position, and values
  const double convolution = 2 * static_cast<double>(c.conv_kernel) * width;
  double input = 0, bins = static_cast<double>(c.mel.mels);
  for (int stage = 1; stage <= c.stages(); ++stage) {
    const auto time = static_cast<double>(c.lengths_after(stage, samples));
    bins = static_cast<double>((static_cast<std::int64_t>(bins) + 1) / 2);
    // The first is a whole convolution of one channel, the others one by one and then across.
    input += time * bins * channels * (2 * 9 + (stage > 1 ? 2 * channels : 0));
  }
  input += frames * 2 * bins * channels * width;
  return {.embedding = input,
          .layer = frames * (2 * weights + attention + convolution),
          .head = frames * 2 * width * static_cast<double>(c.vocab_size + 1)};
}

}  // namespace

std::unique_ptr<Model> make_model(const ModelConfig& config, ParameterSet& parameters,
                                  const ModelCut& cut) {
  if (!config.is_speech()) return std::make_unique<Gpt>(config.gpt(), parameters, cut);
#ifdef CHOIR_HAS_FASTCONFORMER
  return std::make_unique<FastConformer>(config.fastconformer(), parameters, cut);
#else
  throw DeckError("model.type = \"fastconformer\" is not part of this program",
                  "set model.type = \"gpt\"");
#endif
}

ModelCosts unit_costs(const ModelConfig& config) {
  if (config.is_speech()) return fastconformer_costs(config.fastconformer());
  return Gpt::unit_costs(config.gpt(), config.gpt().block_size);
}

}  // namespace choir
