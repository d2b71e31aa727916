#include "src/models/duplex/recogniser_run.hpp"

#include <fmt/core.h>

#include "choir/core/error.hpp"
#include "choir/models/family.hpp"
#include "choir/models/fastconformer/fastconformer_config.hpp"
#include "choir/train/step/run_setup.hpp"

namespace choir {

void require_family(const WholeModel& run, bool right, const std::string& key, const char* wanted) {
  if (right) return;
  throw DeckError(fmt::format("{}: {} has a model of model.type = \"{}\"", key, run.path(),
                              run.deck().family().name()),
                  fmt::format("name a run of model.type = \"{}\"", wanted));
}

Vocabulary units_of_recogniser(const WholeModel& run, const std::string& key, int sample_rate) {
  require_family(run, run.deck().family().transcribes(), key, "fastconformer");
  const auto& config = run.options().model.as<FastConformerConfig>();
  if (const auto rate = static_cast<int>(config.mel.sample_rate); rate != sample_rate)
    throw DeckError(fmt::format("{}: {} was trained on {} Hz, but the codec produces {} Hz", key,
                                run.path(), rate, sample_rate),
                    "name a recogniser that was trained on audio of the codec's rate");
  if (run.vocabulary().empty())
    throw DataError(fmt::format("{}: {} has no text units", key, run.path()),
                    "name a recogniser that was trained with labels of `choir prepare tokens`");
  Vocabulary units = Vocabulary::from_json(run.vocabulary(), run.path());
  if (const std::int64_t symbols = model_of(run.deck()).vocab_size(); units.size() != symbols)
    throw DataError(fmt::format("{}: the model of {} has {} text units, but its tokenizer has {}",
                                key, run.path(), symbols, units.size()),
                    "the checkpoint mixes files of two models");
  return units;
}

}  // namespace choir
