#pragma once
// The deck keys of FastConformers, and the conversion of data.* to the options of a speech data
// set. Pure.
#include <cstdint>
#include <string>

#include "choir/deck/deck.hpp"
#include "src/data/speech/speech_dataset.hpp"
#include "src/models/blend_section.hpp"
#include "src/models/fastconformer/fastconformer_config.hpp"

namespace choir {

/// Keys of data.* that only speech has.
struct SpeechSection : BlendSection {
  std::string labels = "char";      ///< NAME of labels.NAME.bin and tokenizer.NAME.json
  double batch_duration = 60;       ///< seconds in a micro-batch
  double quadratic_duration = 0;    ///< seconds; 0: no penalty
  std::int64_t max_utterances = 0;  ///< in a micro-batch; 0: any number
  std::int64_t buckets = 16, label_buckets = 1;
  std::vector<std::string> bucket_bins, bucket_sizes;  ///< empty: estimated
  bool pad_to_bucket = false;                          ///< one shape per bucket
  std::int64_t window = 4096;                          ///< utterances drawn together
  double min_duration = 0, max_duration = 0;           ///< seconds; 0: no bound
  double min_labels_per_second = 0, max_labels_per_second = 0;
  std::string channel;          ///< of manifests: "average" or a number; "": that of their lines
  std::string on_bad = "stop";  ///< stop | skip
  double bad_cap = 0.01;        ///< largest share that skip leaves out
};

struct FastConformerSettings {
  FastConformerConfig model;
  SpeechSection data;
};

inline const FastConformerSettings& speech_settings(const Deck& deck) {
  return deck.families.of<FastConformerSettings>();
}
/// The encoder that the deck describes.
inline const FastConformerConfig& speech_of(const Deck& deck) {
  return speech_settings(deck).model;
}

/// The keys of an encoder, without their section ("model" of a FastConformer); the derivation of
/// values that are 0; and the problems of an encoder, in the words of a FastConformer. `section`:
/// its section; `ranks`: number of ranks that divide each layer.
const KeyTable<FastConformerConfig>& encoder_keys();
void derive_encoder(Deck& deck, FastConformerConfig& config, const std::string& section);
std::vector<KeyProblem> check_encoder(const Deck& deck, const FastConformerConfig& config,
                                      const std::string& section, std::int64_t ranks);
/// For families whose steps are counted in micro-batches: the problem that their number is missing.
KeyProblem micro_batches_problem();

/// Parse "SECONDS" or "SECONDS:LABELS", and a number of utterances. Throw DeckError.
SpeechBin bucket_bin_of(const std::string& word);
std::int64_t bucket_size_of(const std::string& word);

/// The keys of data.* that speech has, without their section, and the problems of their values with
/// each other.
const KeyTable<SpeechSection>& speech_data_keys();
std::vector<KeyProblem> check_speech_data(const Deck& deck, const SpeechSection& speech);
/// Problems of log-mel features whose options are keys of the section "model".
std::vector<KeyProblem> check_features(const ops::MelOptions& mel);

/// Requirements of a model family on speech besides the keys of all decks.
struct SpeechRequest {
  const SpeechSection* data = nullptr;  ///< section of the deck
  int sample_rate = 0;
  std::int64_t vocab_size = 0;  ///< without the blank; 0: that of the data
  SpeechFrames frames;
};
/// The requirements of a FastConformer's deck.
SpeechRequest speech_request(const Deck& deck);

/// Pure. The options without the blend and the seed of its order, on which ranks agree
/// (data_sources.hpp). Throws DeckError.
SpeechDataConfig speech_data_config(const Deck& deck, const SpeechRequest& request);

}  // namespace choir
