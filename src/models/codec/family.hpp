#pragma once
// The family model.type = "codec": a few small integers per frame of speech, and speech from them.

#include "choir/deck/deck.hpp"
#include "choir/models/family.hpp"
#include "src/models/codec/codec.hpp"
#include "src/models/codec/codec_config.hpp"
#include "src/models/fastconformer/speech_settings.hpp"

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

class CodecFamily final : public FamilyOf<CodecSettings, CodecConfig, Codec> {
 public:
  std::string_view name() const override { return "codec"; }
  FamilyWords words() const override {
    return {.samples = "utterances",
            .rate = "x real time",
            .input_layer = "encoder",
            .audio = true,
            .use = "`choir speak` makes codes of sound, and sound of codes, with it"};
  }
  const KeySet& keys() const override;
  void derive(Deck& deck) const override;
  std::vector<KeyProblem> check(const Deck& deck) const override;
  ModelConfig model(const Deck& deck) const override;
  /// Codes per codebook, which follow from model.levels; the data have no vocabulary.
  std::int64_t& vocab_size(Deck& deck) const override;
  std::string vocab_size_key() const override { return "model.levels"; }
  bool fixed_shape() const override { return false; }
  bool drops_rows(const Deck& deck) const override {
    return codec_settings(deck).data.on_bad == "skip";
  }

  /// The single term "loss" of features, or the terms of WaveformHead::compare() of sound.
  std::vector<LossTerm> loss_terms(const ModelConfig& config) const override;
  UnitCosts unit_costs(const ModelConfig& config) const override;
  bool shares_positions() const override { return false; }
  std::vector<KeyProblem> check_tensor_size(const ModelConfig& config,
                                            std::int64_t ranks) const override;
  std::string describe(const ModelConfig& config) const override;
  ModelBatch fields(const ModelConfig& config, const BatchShape& shape) const override;
  void fill(const ModelConfig& config, const BatchShape& shape, ModelBatch& batch) const override;
  void clear(ModelBatch& batch) const override;

  std::unique_ptr<TrainingData> open_data(const Deck& deck, const BatchSizes& batch, Mesh& mesh,
                                          Logger& log) const override;
  std::unique_ptr<EvaluationData> open_evaluation(const Deck& deck, const std::string& vocabulary,
                                                  Mesh& mesh, Logger& log) const override;
  std::unique_ptr<SyntheticBatches> synthetic_batches(const ModelConfig& config, std::uint64_t seed,
                                                      std::int64_t samples) const override;
  void evaluate_once(ModelInstance& instance, const ModelBatch& batch) const override;
};

const ModelFamily& codec_family();

}  // namespace choir
