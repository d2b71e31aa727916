#pragma once
// One optimizer step on this rank's share of the global batch. The same class runs on the cpu and,
// to plan memory and count work, on the null device with null communicators.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "choir/comm/mesh.hpp"
#include "choir/optim/adamw_optimizer.hpp"
#include "choir/optim/gradient_norm.hpp"
#include "choir/optim/lr_schedule.hpp"
#include "choir/parallel/gradient_reducer.hpp"
#include "choir/train/model_instance.hpp"
#include "choir/train/phase_clock.hpp"

namespace choir {

struct EngineOptions {
  GptConfig model;
  Precision precision;
  std::uint64_t seed = 0;
  std::int64_t micro_batch_size = 1;  ///< B, sequences
  std::int64_t micro_batches = 1;     ///< per rank and step
  bool reproducible = false;
  AdamWOptimizer::Options adamw;
  LrSchedule schedule;
  double grad_clip = 1.0;
};

/// Equal on every rank: sums are global.
struct StepResult {
  double loss = 0;       ///< mean over the valid tokens of the global batch
  double grad_norm = 0;  ///< before clipping
  double learning_rate = 0;
  bool updated = true;  ///< false: loss or norm was not finite, nothing was changed
};

class Engine {
 public:
  /// Collective over the mesh. `arena_bytes` as planned; Arena::kUnbounded on the null device.
  Engine(const EngineOptions& options, Device& device, Mesh& mesh, std::size_t arena_bytes);

  using BatchOf = std::function<TokenBatch(std::int64_t micro_batch)>;  ///< j inside the rank
  /// Collective. `step` from 0; `updates` optimizer updates came before (they differ when steps
  /// were skipped). `valid_tokens`: of the global batch. Time goes to `clock`.
  StepResult step(std::int64_t step, std::int64_t updates, const BatchOf& batch_of,
                  double valid_tokens, PhaseClock& clock);

  /// Global index of this rank's micro-batch j of `step`: ranks own contiguous runs.
  std::int64_t micro_batch_index(std::int64_t step, std::int64_t j) const;

  ModelInstance& instance() { return instance_; }
  AdamWOptimizer& optimizer() { return *optimizer_; }
  const EngineOptions& options() const { return options_; }
  Mesh& mesh() { return *mesh_; }

  /// Everything allocated so far, activations at their peak.
  MemoryPlan memory() const;
  /// Names of parameters whose gradient is not finite, for messages. Local.
  std::vector<std::string> non_finite_gradients();

 private:
  void forward_backward(std::int64_t j, const TokenBatch& batch, double scale, PhaseClock& clock);
  double reduce_losses();

  EngineOptions options_;
  Mesh* mesh_;
  ModelInstance instance_;
  std::unique_ptr<AdamWOptimizer> optimizer_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<GradientNorm> norm_;
  Buffer loss_memory_;
  TensorView losses_;  // [micro-batches of all ranks] f64, then their sum
};

}  // namespace choir
