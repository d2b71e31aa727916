#pragma once
// The batches of `choir bench step`: windows of the deck's tokens, or synthetic speech.
#include <memory>
#include <vector>

#include "choir/comm/mesh.hpp"
#include "choir/core/log.hpp"
#include "choir/train/bench/bench_step.hpp"
#include "choir/train/engine/model_instance.hpp"

namespace choir {

class BenchBatches {
 public:
  virtual ~BenchBatches() = default;
  /// What model.vocab_size must reach; 0: anything.
  virtual std::int64_t vocab_size() const = 0;
  /// Of speech, see EngineOptions::shapes.
  virtual std::vector<BatchShape> shapes() const { return {}; }
  virtual void start(const Sharding& sharding) = 0;
  /// This rank's j-th of a step; asked for in order.
  virtual ModelBatch micro_batch(std::int64_t step, std::int64_t j) = 0;

  // Of all micro-batches of a step.
  virtual double targets(std::int64_t step) const = 0;
  virtual double audio_seconds(std::int64_t) const { return 0; }
  /// Of the model, for the MFU.
  virtual double flops(std::int64_t step, ModelInstance& instance) const = 0;
  /// Of one of `parts` ranks that share a micro-batch; the mean over the steps.
  virtual StepWork work(const EngineOptions& options, ModelInstance& instance,
                        double parts) const = 0;
};

/// Collective over the mesh.
std::unique_ptr<BenchBatches> open_bench_batches(const Deck& deck, const BatchSizes& batch,
                                                 Mesh& mesh, Logger& log,
                                                 const SyntheticSpeech::Options& speech);

}  // namespace choir
