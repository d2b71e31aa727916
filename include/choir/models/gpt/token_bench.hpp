#pragma once
// Windows of the deck's tokens for `choir bench step`, and the work of a step on them.
#include <memory>

#include "choir/data/tokens/dataset.hpp"
#include "choir/deck/deck.hpp"
#include "choir/lab/bench/bench_batches.hpp"
#include "choir/models/gpt/gpt_config.hpp"

namespace choir {

/// Weights that take part in matrix products, the head included.
std::int64_t matmul_weights(const GptConfig& config);

/// The work of a step on `sequences` of `config.block_size` tokens on this rank, which updates
/// `parameters` parameters.
StepWork step_work(const GptConfig& config, const Precision& precision, std::int64_t sequences,
                   std::int64_t parameters);

class TokenBenchBatches final : public BenchBatches {
 public:
  TokenBenchBatches(const Deck& deck, const BatchSizes& batch, Mesh& mesh, Logger& log);
  std::int64_t vocab_size() const override { return data_->vocab_size(); }
  void start(const Sharding& sharding) override;
  ModelBatch micro_batch(std::int64_t step, std::int64_t j) override;
  ByTerm targets(std::int64_t) const override { return tokens_; }
  double flops(std::int64_t step, ModelInstance& instance) const override;
  StepWork work(const EngineOptions& options, ModelInstance& instance, double parts) const override;

 private:
  std::unique_ptr<Dataset> data_;
  BatchSizes batch_;
  double tokens_;
};

}  // namespace choir
