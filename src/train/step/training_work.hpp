#pragma once
// The work of a pipeline stage in a training step: its pieces of the model, forward and backward,
// for every micro-batch of this rank. It owns the passes in flight.
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "choir/run/model_instance.hpp"
#include "src/parallel/gradients/gradient_sums.hpp"
#include "src/parallel/pipeline/pipeline_executor.hpp"
#include "src/train/step/phase_clock.hpp"

namespace choir {

class TrainingWork final : public StageWork {
 public:
  struct Options {
    std::int64_t micro_batches = 1;
    int passes = 1;  ///< largest number in flight: promised_live() of the schedule
  };
  /// All arguments are borrowed. Local.
  TrainingWork(ModelInstance& instance, GradientPath& gradients, const Options& options);

  /// Inputs of one step; they stay valid while the executor runs.
  struct Step {
    /// Returns micro-batch j. It is requested before its first forward; stages that receive
    /// activations also request it before that. The batch stays valid until its last backward.
    std::function<ModelBatch(std::int64_t j)> batch_of;
    /// Device scalars, one for each term of the loss. Each multiplies the sum of the term's losses
    /// whose gradient is computed.
    const double* loss_factors = nullptr;
    /// Returns the memory that collects the losses of micro-batch j.
    std::function<LossSums(std::int64_t j)> losses_of;
    /// Called when a new phase begins.
    std::function<void(Phase)> enter;
  };
  void begin(Step step) { step_ = std::move(step); }

  Tensor receive_buffer(int micro_batch, int chunk, bool gradient) override;
  Tensor forward(int micro_batch, int chunk, Tensor input) override;
  Tensor backward(int micro_batch, int chunk, Tensor d_output, bool with_weights) override;
  void backward_weight(int micro_batch, int chunk) override;

 private:
  std::size_t place(int micro_batch, int chunk) const {
    return static_cast<std::size_t>(chunk * options_.micro_batches + micro_batch);
  }
  Pass& take_pass(int micro_batch, int chunk);
  Pass& pass_of(int micro_batch, int chunk) const;
  void free_pass(int micro_batch, int chunk);
  void leave();

  ModelInstance& instance_;
  GradientPath& gradients_;
  Options options_;
  Step step_;
  bool exchanges_;                  // exchanges data with other stages between the calls
  std::unique_ptr<Pass> received_;  // a pass that is begun only to determine sizes
  std::vector<std::unique_ptr<Pass>> passes_;
  std::vector<int> free_;            // free indices of passes_
  std::vector<int> pass_of_;         // [chunks, micro-batches]; -1: none
  std::vector<ModelBatch> batches_;  // [micro-batches]
};

}  // namespace choir
