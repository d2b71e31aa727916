#pragma once
// A speech model opened for transcription.
#include <string>

#include "choir/app/session.hpp"
#include "choir/train/speech/speech_stream.hpp"
#include "choir/train/speech/transcriber.hpp"

namespace choir {

struct LoadedSpeechModel : LoadedModel {
  TranscriptionPlan plan;
  StreamPlan stream;  ///< instead, of a stream
};

struct SpeechModelRequest {
  std::string checkpoint, precision, device = "auto";
  int tensor = 1;
  bool stream = false;  ///< chunk by chunk: refused where the model cannot
  TranscriptionOptions transcription;
};

/// Collective; as load_model(). DeckError for a checkpoint that is no speech model; DataError for
/// one without units of text.
LoadedSpeechModel load_speech_model(const SpeechModelRequest& request, Workplace& place);

}  // namespace choir
