#include "choir/model/make_model.hpp"

#include "choir/model/gpt.hpp"
#if __has_include("choir/model/fastconformer.hpp")
#include "choir/model/fastconformer.hpp"
#define CHOIR_HAS_FASTCONFORMER 1
#endif

namespace choir {
namespace {

#ifdef CHOIR_HAS_FASTCONFORMER
std::unique_ptr<Model> make_fastconformer(const FastConformerConfig& config,
                                          ParameterSet& parameters, const ModelCut& cut) {
  return std::make_unique<FastConformer>(config, parameters, cut);
}

ModelCosts fastconformer_costs(const FastConformerConfig& config) {
  constexpr std::int64_t kSeconds = 10, kLabels = 100;
  return FastConformer::unit_costs(
      config,
      {.samples = 1, .audio_samples = kSeconds * config.mel.sample_rate, .labels = kLabels});
}
#else
[[noreturn]] void refuse() {
  throw DeckError("model.type = \"fastconformer\" is not part of this program",
                  "set model.type = \"gpt\"");
}

std::unique_ptr<Model> make_fastconformer(const FastConformerConfig&, ParameterSet&,
                                          const ModelCut&) {
  refuse();
}

ModelCosts fastconformer_costs(const FastConformerConfig&) {
  refuse();
}
#endif

}  // namespace

std::unique_ptr<Model> make_model(const ModelConfig& config, ParameterSet& parameters,
                                  const ModelCut& cut) {
  if (config.is_speech()) return make_fastconformer(config.fastconformer(), parameters, cut);
  return std::make_unique<Gpt>(config.gpt(), parameters, cut);
}

ModelCosts unit_costs(const ModelConfig& config) {
  if (config.is_speech()) return fastconformer_costs(config.fastconformer());
  return Gpt::unit_costs(config.gpt(), config.gpt().block_size);
}

}  // namespace choir
