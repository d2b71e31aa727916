#pragma once
// The family model.type = "duplex": full-duplex speech to speech, and its keys in the deck.

#include "choir/deck/deck.hpp"
#include "choir/models/family.hpp"
#include "src/models/blend_section.hpp"
#include "src/models/duplex/duplex.hpp"
#include "src/models/duplex/duplex_config.hpp"
#include "src/models/gpt/family.hpp"

namespace choir {

/// The defaults, with a streaming encoder.
inline DuplexConfig undetermined_duplex() {
  DuplexConfig config;
  config.encoder.causal = true;
  config.encoder.context_style = ContextStyle::chunked;
  config.encoder.left_context = 70, config.encoder.right_context = 1;
  config.encoder.normalise = false;
  config.lm = undetermined_gpt();
  return config;
}

/// Keys of data.* and eval.* that only dialogues have.
struct DuplexSection : BlendSection {
  std::string codes = "codec";     ///< NAME of agent/codes.NAME.bin
  double batch_duration = 60;      ///< seconds in a micro-batch
  std::int64_t max_dialogues = 0;  ///< in a micro-batch; 0: any number
  std::int64_t buckets = 8;
  std::int64_t window = 4096;   ///< dialogues drawn together
  std::string on_bad = "stop";  ///< stop | skip
  std::int64_t dialogues = 8;  ///< dialogues of each set that are held and scored; 0: none, -1: all
  std::string codec,
      recogniser;  ///< runs that convert the agent's codes to sound and text; "": none
  ScorerDevice scorer_device = ScorerDevice::cpu;
};

struct DuplexSettings {
  DuplexConfig model = undetermined_duplex();
  DuplexSection data;
};

inline const DuplexSettings& duplex_settings(const Deck& deck) {
  return deck.families.of<DuplexSettings>();
}

class DuplexFamily final : public FamilyOf<DuplexSettings, DuplexConfig, Duplex> {
 public:
  std::string_view name() const override { return "duplex"; }
  FamilyWords words() const override {
    return {.samples = "dialogues",
            .rate = "x real time",
            .input_layer = "subsampling",
            .audio = true,
            .use = "`choir talk` holds dialogues with it"};
  }
  const KeySet& keys() const override;
  void derive(Deck& deck) const override;
  std::vector<KeyProblem> check(const Deck& deck) const override;
  std::vector<std::string_view> unread_keys() const override {
    return {"data.reader", "data.readers_every", "data.hints", "data.preload"};
  }
  ModelConfig model(const Deck& deck) const override;
  std::int64_t& vocab_size(Deck& deck) const override;
  std::string vocab_size_key() const override { return "model.lm.vocab_size"; }
  bool fixed_shape() const override { return false; }
  bool drops_rows(const Deck& deck) const override {
    return duplex_settings(deck).data.on_bad == "skip";
  }

  std::vector<LossTerm> loss_terms(const ModelConfig& config) const override;
  UnitCosts unit_costs(const ModelConfig& config) const override;
  HeadChunk head_chunk(const ModelConfig& config, DType logits) const override;
  void limit_head_chunk(ModelConfig& config, std::int64_t rows) const override;
  std::vector<TiedNames> tied(const ModelConfig& config) const override;
  std::vector<KeyProblem> check_tensor_size(const ModelConfig& config,
                                            std::int64_t ranks) const override;
  std::int64_t query_heads(const ModelConfig& config) const override;
  std::string describe(const ModelConfig& config) const override;
  ModelBatch fields(const ModelConfig& config, const BatchShape& shape) const override;
  ops::BenchShape op_shape(const ModelConfig& config, const BatchShape& shape) const override;
  void fill(const ModelConfig& config, const BatchShape& shape, ModelBatch& batch) const override;
  void clear(ModelBatch& batch) const override;

  std::unique_ptr<TrainingData> open_data(const Deck& deck, const BatchSizes& batch, Mesh& mesh,
                                          Logger& log) const override;
  std::unique_ptr<EvaluationData> open_evaluation(const Deck& deck, const std::string& vocabulary,
                                                  Mesh& mesh, Logger& log) const override;
  std::unique_ptr<SyntheticBatches> synthetic_batches(const ModelConfig& config, std::uint64_t seed,
                                                      std::int64_t samples) const override;
  std::int64_t usual_vocab_size() const override { return 32000; }
  void evaluate_once(ModelInstance& instance, const ModelBatch& batch) const override;
};

const ModelFamily& duplex_family();

}  // namespace choir
