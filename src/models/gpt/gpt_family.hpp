#pragma once
// The family model.type = "gpt": decoder-only transformers over sequences of tokens.
#include "choir/models/family.hpp"
#include "choir/models/gpt/gpt.hpp"
#include "choir/models/gpt/gpt_settings.hpp"

namespace choir {

class GptFamily final : public FamilyOf<GptSettings, GptConfig, Gpt> {
 public:
  std::string_view name() const override { return "gpt"; }
  FamilyWords words() const override { return {.use = "`choir generate` continues text with it"}; }
  const KeySet& keys() const override;
  void derive(Deck& deck) const override;
  std::vector<KeyProblem> check(const Deck& deck) const override;
  ModelConfig model(const Deck& deck) const override;
  std::int64_t& vocab_size(Deck& deck) const override;
  bool fixed_shape() const override { return true; }

  UnitCosts unit_costs(const ModelConfig& config) const override;
  std::vector<TiedNames> tied(const ModelConfig& config) const override;
  std::vector<KeyProblem> check_tensor_size(const ModelConfig& config,
                                            std::int64_t ranks) const override;
  std::int64_t query_heads(const ModelConfig& config) const override;
  std::string describe(const ModelConfig& config) const override;
  bool generates() const override { return true; }
  BatchShape shape(const ModelConfig& config, std::int64_t samples) const override;
  ModelBatch fields(const ModelConfig& config, const BatchShape& shape) const override;
  ops::BenchShape op_shape(const ModelConfig& config, const BatchShape& shape) const override;

  std::unique_ptr<TrainingData> open_data(const Deck& deck, const BatchSizes& batch, Mesh& mesh,
                                          Logger& log) const override;
  std::unique_ptr<EvaluationData> open_evaluation(const Deck& deck, const std::string& vocabulary,
                                                  Mesh& mesh, Logger& log) const override;
  std::unique_ptr<SyntheticBatches> synthetic_batches(const ModelConfig& config, std::uint64_t seed,
                                                      std::int64_t samples) const override;
  std::unique_ptr<BenchBatches> bench_batches(const Deck& deck, const BatchSizes& batch, Mesh& mesh,
                                              Logger& log, const BenchAudio& audio) const override;
  bool writes_samples(const Deck& deck) const override;
  void sample_once(ModelInstance& instance) const override;
};

const ModelFamily& gpt_family();

}  // namespace choir
