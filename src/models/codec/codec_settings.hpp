#pragma once
// The deck keys of codecs.
#include "choir/deck/deck.hpp"
#include "choir/models/fastconformer/speech_settings.hpp"
#include "src/models/codec/codec_config.hpp"

namespace choir {

struct CodecSettings {
  CodecConfig model;
  SpeechSection data{.labels = ""};  ///< as recognisers have it; labels may be counted
};

inline const CodecSettings& codec_settings(const Deck& deck) {
  return deck.families.of<CodecSettings>();
}

/// The requirements of codecs on packed speech: lengths in rows of features, which fit any
/// transcript.
inline SpeechRequest codec_request(const Deck& deck) {
  const CodecSettings& settings = codec_settings(deck);
  return {.data = &settings.data,
          .sample_rate = static_cast<int>(settings.model.mel.sample_rate),
          .frames = {.hop = settings.model.mel.hop, .stages = 0}};
}

}  // namespace choir
