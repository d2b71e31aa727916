#pragma once
// The family model.type = "fastconformer": speech recognisers, an encoder with a CTC head.

#include <vector>

#include "choir/models/family.hpp"
#include "src/models/fastconformer/fastconformer.hpp"
#include "src/models/fastconformer/speech_settings.hpp"

namespace choir {

class FastConformerFamily final
    : public FamilyOf<FastConformerSettings, FastConformerConfig, FastConformer> {
 public:
  std::string_view name() const override { return "fastconformer"; }
  FamilyWords words() const override {
    return {.samples = "utterances",
            .rate = "x real time",
            .input_layer = "subsampling",
            .audio = true,
            .use = "`choir transcribe` transcribes speech with it"};
  }
  const KeySet& keys() const override;
  void derive(Deck& deck) const override;
  std::vector<KeyProblem> check(const Deck& deck) const override;
  ModelConfig model(const Deck& deck) const override;
  std::int64_t& vocab_size(Deck& deck) const override;
  bool fixed_shape() const override { return false; }
  bool drops_rows(const Deck& deck) const override {
    return speech_settings(deck).data.on_bad == "skip";
  }

  UnitCosts unit_costs(const ModelConfig& config) const override;
  bool shares_positions() const override { return false; }
  std::string describe(const ModelConfig& config) const override;
  bool transcribes() const override { return true; }
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
  std::unique_ptr<BenchBatches> bench_batches(const Deck& deck, const BatchSizes& batch, Mesh& mesh,
                                              Logger& log, const BenchAudio& audio) const override;
  /// The usual vocabulary size of a recogniser of word pieces.
  std::int64_t usual_vocab_size() const override { return 1024; }
  /// Refuses a head of other units: the same outputs would stand for other pieces.
  void check_start(const Deck& deck, const std::vector<StartingPoint>& points,
                   const std::string& vocabulary) const override;
  void evaluate_once(ModelInstance& instance, const ModelBatch& batch) const override;
};

const ModelFamily& fastconformer_family();

}  // namespace choir
