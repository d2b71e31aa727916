#include "choir/train/open_training_data.hpp"

#include "src/train/speech/speech_training_data.hpp"
#include "src/train/synthetic/synthetic_speech_data.hpp"
#include "src/train/text/token_training_data.hpp"

namespace choir {

std::unique_ptr<TrainingData> open_training_data(const Deck& deck, const BatchSizes& batch,
                                                 Mesh& mesh, Logger& log) {
  if (deck.model.speech() && deck.data.format == "synthetic")
    return std::make_unique<SyntheticSpeechData>(deck);
  if (deck.model.speech()) return std::make_unique<SpeechTrainingData>(deck, batch, mesh, log);
  return std::make_unique<TokenTrainingData>(deck, batch, mesh, log);
}

}  // namespace choir
