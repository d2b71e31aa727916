#pragma once
// The options of the engine: the model, how it is trained, and how its work is divided. They are
// derived from a deck, or set one by one.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "choir/deck/deck.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/ops/step_control.hpp"
#include "choir/run/model_instance.hpp"
#include "src/comm/watch/watchdog.hpp"
#include "src/optim/lr_schedule.hpp"
#include "src/optim/optimizer.hpp"

namespace choir {

/// A factor on the learning rate of the parameters whose names match a pattern
/// (src/deck/name_patterns.hpp).
struct RateScale {
  std::string pattern;
  double factor = 1;
};

/// Returns the factor of each parameter: 1 if no pattern matches its name; a copy of a tied weight
/// has the factor of the original. Returns an empty function if there are no patterns. Throws
/// DeckError for a pattern that matches nothing or only frozen parameters, and if two patterns
/// match one parameter. Local, the same on every rank.
std::function<double(const Parameter&)> rate_scales(const ParameterSet& parameters,
                                                    const std::vector<RateScale>& scales);

/// The model to be trained, described as for everybody who runs a model, and the options of
/// training.
struct EngineOptions : ModelInstance::Options {
  EngineOptions() { training = true; }
  std::int64_t micro_batch_size = 1;  ///< B, sequences of tokens
  /// The shapes that micro-batches of speech may have; memory is planned for each.
  std::vector<BatchShape> shapes;
  std::vector<BatchShape> evaluation_shapes;  ///< further shapes, without gradients
  MemoryPlan scorers;  ///< beside the engine: see TrainingData::add_scorers and add_resident
  std::vector<std::size_t> arena_requests;  ///< from the plan: see StepPlan and Arena::requests
  std::int64_t micro_batches = 1;           ///< per rank and step
  Optimizer::Options optimizer;             ///< its `scale` is set by the engine
  std::vector<RateScale> rate_scales;
  LrSchedule schedule;
  double grad_clip = 1.0;
  double ema = 0;  ///< decay of the averaged weights; 0: none
  ops::LossScaling loss_scaling{};
  bool cuda_graph = true;         ///< only if the device records graphs
  bool dependent_launch = false;  ///< their kernels begin early: see cuda::set_dependent_launch
  /// See GradientReducer::before_sums. Recorded steps cannot call it: cuda_graph must be off.
  std::function<void(const Stream&, const Bucket&)> spoil_gradients{};
  int lag = -1;                  ///< steps queued before a result is read; -1: the device's default
  Watchdog* watchdog = nullptr;  ///< receives what a pipeline stage is waiting for
  /// False for benches whose targets are not those of the batch, or whose ranks do not communicate:
  /// the counts of the model are then not compared with them.
  bool compare_counts = true;
  bool drops_rows = false;    ///< ModelFamily::drops_rows
  bool time_actions = false;  ///< record the time of each action of the pipeline schedule
};

/// The shapes that micro-batches may have; token models have one.
std::vector<BatchShape> shapes_of(const EngineOptions& options);

/// Options of the engine. The deck must have its vocabulary (model.vocab_size > 0), and its batch
/// must be resolved.
EngineOptions engine_options(const Deck& deck, const BatchSizes& batch);

}  // namespace choir
