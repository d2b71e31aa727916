#pragma once
// A speech model opened for transcription.
#include <memory>
#include <string>

#include "choir/app/session.hpp"
#include "choir/data/text_units.hpp"
#include "choir/train/transcriber.hpp"

namespace choir {

struct LoadedSpeechModel {
  Checkpoint checkpoint;
  Deck deck;  ///< of the run that wrote it
  std::unique_ptr<TextUnits> units;
  TranscriptionPlan plan;
  std::unique_ptr<ModelInstance> instance;
};

struct SpeechModelRequest {
  std::string checkpoint, precision, device = "auto";
  int tensor = 1;
  TranscriptionOptions transcription;
};

/// Collective; as load_model(). DeckError for a checkpoint that is no speech model; DataError for
/// one without units of text.
LoadedSpeechModel load_speech_model(const SpeechModelRequest& request, Workplace& place);

}  // namespace choir
