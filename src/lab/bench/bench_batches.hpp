#pragma once
// The batches of `choir bench step`. A model family provides them: windows of the deck's data, or
// synthetic content.
#include <cstdint>
#include <vector>

#include "choir/models/batch.hpp"
#include "choir/parallel/sharding/sharding.hpp"
#include "src/run/step_plan.hpp"
#include "src/train/step/engine_options.hpp"

namespace choir {

/// The synthetic speech that speech families are fed.
struct BenchAudio {
  double batch_duration = 120;       ///< longest micro-batch in seconds, padding included
  double shortest = 2, longest = 4;  ///< seconds of an utterance
  /// Fewer where the frames do not suffice: CTC needs at least one frame a label.
  double labels_per_second = 4;
  std::uint64_t seed = 0;
};

class BenchBatches {
 public:
  virtual ~BenchBatches() = default;
  /// The smallest model.vocab_size that fits the batches; 0: any size fits.
  virtual std::int64_t vocab_size() const = 0;
  /// See EngineOptions::shapes; empty if the family has a fixed shape.
  virtual std::vector<BatchShape> shapes() const { return {}; }
  virtual void start(const Sharding& sharding) = 0;
  /// The j-th micro-batch of this rank in a step. They are requested in order.
  virtual ModelBatch micro_batch(std::int64_t step, std::int64_t j) = 0;

  // Sums over all micro-batches of a step:
  virtual ByTerm targets(std::int64_t step) const = 0;
  virtual double audio_seconds(std::int64_t) const { return 0; }
  /// Targets of a step whose micro-batches are all `one`, which belongs to step `step`. The default
  /// is for micro-batches that have equally many.
  virtual ByTerm repeated_targets(std::int64_t step, const ModelBatch& /*one*/) const {
    return targets(step);
  }
  /// FLOPs of the model in a step, for the MFU.
  virtual double flops(std::int64_t step, ModelInstance& instance) const = 0;
  /// The work of one of `parts` ranks that share a micro-batch, as the mean over the steps.
  virtual StepWork work(const EngineOptions& options, ModelInstance& instance,
                        double parts) const = 0;
};

}  // namespace choir
