#pragma once
// What a stage computes in a training step: its pieces of the model, forward and backward, for
// every micro-batch of this rank. Holds the passes in flight.
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "choir/parallel/gradient_reducer.hpp"
#include "choir/parallel/partial_gradients.hpp"
#include "choir/parallel/pipeline_executor.hpp"
#include "choir/train/engine/model_instance.hpp"
#include "choir/train/engine/phase_clock.hpp"

namespace choir {

class TrainingWork final : public StageWork {
 public:
  struct Options {
    std::int64_t micro_batches = 1;
    bool reproducible = false;
    int passes = 1;  ///< most that are in flight: promised_live() of the schedule
  };
  /// All are borrowed. Local.
  TrainingWork(ModelInstance& instance, GradientReducer& reducer, PartialGradients& partial,
               const Options& options);

  /// What differs from step to step; holds while the executor runs.
  struct Step {
    /// Micro-batch j, asked for before its first forward, by stages that receive also before that,
    /// and then again; to hold until its last backward.
    std::function<ModelBatch(std::int64_t j)> batch_of;
    /// Device scalar: of the sum of losses whose gradient is computed.
    const double* loss_factor = nullptr;
    /// [1] f64: where the sum of the losses of micro-batch j goes.
    std::function<TensorView(std::int64_t j)> loss_sum;
    /// What the time from now on goes to.
    std::function<void(Phase)> enter;
  };
  void begin(Step step) { step_ = std::move(step); }

  Tensor receive_buffer(int micro_batch, bool gradient) override;
  Tensor forward(int micro_batch, int chunk, Tensor input) override;
  Tensor backward(int micro_batch, int chunk, Tensor d_output, bool with_weights) override;
  void backward_weight(int micro_batch, int chunk) override;

 private:
  std::size_t place(int micro_batch, int chunk) const {
    return static_cast<std::size_t>(chunk * options_.micro_batches + micro_batch);
  }
  ModelBatch batch_of(int micro_batch) const;
  Sequence sequence_of(const ModelBatch& batch) const {
    return instance_.model().sequence_of(batch, instance_.context());
  }
  Pass& take_pass(int micro_batch, int chunk);
  Pass& pass_of(int micro_batch, int chunk) const;
  void free_pass(int micro_batch, int chunk);
  void begin_gradients_of(int micro_batch);
  void leave();

  ModelInstance& instance_;
  GradientReducer& reducer_;
  PartialGradients& partial_;
  Options options_;
  Step step_;
  bool complete_;                   // gradients leave this rank with every micro-batch
  bool exchanges_;                  // with other stages, between the calls
  std::unique_ptr<Pass> received_;  // begun to know sizes
  std::vector<std::unique_ptr<Pass>> passes_;
  std::vector<int> free_;            // of passes_
  std::vector<int> pass_of_;         // [chunks, micro-batches]; -1: none
  std::vector<ModelBatch> batches_;  // [micro-batches]
};

}  // namespace choir
