#pragma once
// The family model.type = "duplex": full-duplex speech to speech.
#include "choir/models/duplex/duplex_settings.hpp"
#include "choir/models/family.hpp"
#include "src/models/duplex/duplex.hpp"

namespace choir {

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
  ModelConfig model(const Deck& deck) const override;
  std::int64_t& vocab_size(Deck& deck) const override;
  std::string vocab_size_key() const override { return "model.lm.vocab_size"; }
  bool fixed_shape() const override { return false; }

  std::vector<LossTerm> loss_terms(const ModelConfig& config) const override;
  UnitCosts unit_costs(const ModelConfig& config) const override;
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
