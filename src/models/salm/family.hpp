#pragma once
// The family model.type = "salm": language models with audio input, and their keys in the deck.

#include <string>

#include "choir/deck/deck.hpp"
#include "choir/models/family.hpp"
#include "src/models/blend_section.hpp"
#include "src/models/gpt/family.hpp"
#include "src/models/salm/salm.hpp"
#include "src/models/salm/salm_config.hpp"

namespace choir {

inline SalmConfig undetermined_salm() {
  SalmConfig config;
  config.lm = undetermined_gpt();
  return config;
}

/// Keys of data.* and eval.* that only conversations with clips have.
struct SalmSection : BlendSection {
  std::int64_t batch_tokens = 2048;    ///< rows of a micro-batch, padding included
  std::int64_t max_tokens = 0;         ///< longer conversations are skipped; 0: block_size
  std::int64_t max_conversations = 0;  ///< in a micro-batch; 0: any number
  std::int64_t buckets = 8;
  std::int64_t window = 4096;       ///< conversations drawn together
  std::int64_t answers = 0;         ///< per set, generated and scored; 0: all, -1: none
  std::int64_t answer_tokens = 64;  ///< upper bound per answer
};

struct SalmSettings {
  SalmConfig model = undetermined_salm();
  SalmSection data;
};

inline const SalmSettings& salm_settings(const Deck& deck) {
  return deck.families.of<SalmSettings>();
}

class SalmFamily final : public FamilyOf<SalmSettings, SalmConfig, Salm> {
 public:
  std::string_view name() const override { return "salm"; }
  FamilyWords words() const override {
    return {.samples = "conversations",
            .rate = "x real time",
            .input_layer = "subsampling",
            .audio = true,
            .use = "`choir generate --audio` answers about sound files with it"};
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
  bool hears() const override { return true; }

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
  /// A language model must keep its vocabulary.
  void check_start(const Deck& deck, const std::vector<StartingPoint>& points,
                   const std::string& vocabulary) const override;
  void evaluate_once(ModelInstance& instance, const ModelBatch& batch) const override;
};

const ModelFamily& salm_family();

}  // namespace choir
