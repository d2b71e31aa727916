#pragma once
// The batches of `choir bench step`, which a family of models makes: windows of the deck's data, or
// synthetic content.
#include <cstdint>
#include <vector>

#include "choir/models/batch.hpp"
#include "choir/parallel/sharding/sharding.hpp"
#include "choir/train/step/engine.hpp"
#include "choir/train/step/step_floor.hpp"

namespace choir {

/// What families that hear are fed.
struct BenchAudio {
  double batch_duration = 120;       ///< seconds of a micro-batch, at most, with padding
  double shortest = 2, longest = 4;  ///< seconds of an utterance
  double labels_per_second = 4;      ///< where frames suffice: CTC wants one each, at least
  std::uint64_t seed = 0;
};

class BenchBatches {
 public:
  virtual ~BenchBatches() = default;
  /// What model.vocab_size must reach; 0: anything.
  virtual std::int64_t vocab_size() const = 0;
  /// See EngineOptions::shapes; empty where the family has a fixed shape.
  virtual std::vector<BatchShape> shapes() const { return {}; }
  virtual void start(const Sharding& sharding) = 0;
  /// This rank's j-th of a step; asked for in order.
  virtual ModelBatch micro_batch(std::int64_t step, std::int64_t j) = 0;

  // Sums over all micro-batches of a step.
  virtual ByTerm targets(std::int64_t step) const = 0;
  virtual double audio_seconds(std::int64_t) const { return 0; }
  /// FLOPs of the model, for the MFU.
  virtual double flops(std::int64_t step, ModelInstance& instance) const = 0;
  /// The work of one of `parts` ranks that share a micro-batch; the mean over the steps.
  virtual StepWork work(const EngineOptions& options, ModelInstance& instance,
                        double parts) const = 0;
};

}  // namespace choir
