#pragma once
// A training run of test/toy_family, whose second layer has a loss of its own, on this rank of a
// mesh.
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/device/cpu_device.hpp"
#include "src/train/step/engine.hpp"
#include "src/train/step/step_planner.hpp"
#include "test/toy_family/toy_family.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir::test {

inline toy::ToyConfig small_toy() {
  return {.n_layer = 3, .n_embd = 6, .vocab_size = 7, .length = 5, .size_weight = 0.3};
}

class ToyRun {
 public:
  using Named = std::map<std::string, std::vector<double>>;
  struct Options {
    std::int64_t micro_batches = 2;  ///< of a step, on all ranks
    const char* precision = "fp64";
    std::int64_t rows = 2;  ///< sequences of a micro-batch
    bool sequence = false;  ///< sequence parallelism
    int zero = 0;           ///< ZeRO stage
    bool damages = false;   ///< the last sequence of every micro-batch turns out to be damaged
  };
  ToyRun(const toy::ToyConfig& model, Mesh& mesh, const Options& o)
      : options_(options_of(model, mesh, o)),
        damages_(o.damages),
        plan_(plan_step(options_, mesh.layout(), mesh.rank(), mesh.node().size(), false, &device_)),
        engine_(options_, device_, mesh, plan_.arena_bytes),
        batches_(ModelConfig(model), 3, {.samples = o.rows, .tokens = model.length}),
        micro_batches_(o.micro_batches) {
    engine_.instance().initialise(5);
  }

  Engine& engine() { return engine_; }
  /// Announces the targets of whole micro-batches.
  StepResult step() { return step(targets()); }
  StepResult step(const StepTargets& targets) {
    engine_.step(
        0, [&](std::int64_t j) { return batch(engine_.micro_batch_index(0, j)); }, targets, clock_);
    return engine_.finish(clock_);
  }
  ByTerm targets() const { return batches_.targets(0, micro_batches_); }
  ModelBatch batch(std::int64_t index) {
    ModelBatch batch = batches_.micro_batch(index);
    if (!damages_) return batch;
    const std::int64_t length = batch.tokens, rows = batch.samples;
    std::fill_n(batch["next"].as<std::int32_t>() + (rows - 1) * length, length, -1);
    batch.dropped[0] = static_cast<double>(length);
    return batch;
  }
  /// The loss of the step's micro-batches, by evaluation on one rank.
  double loss() {
    ByTerm sums;
    for (std::int64_t j = 0; j < micro_batches_; ++j)
      sums += engine_.instance().loss_sums(batches_.micro_batch(j));
    return validation_of(engine_.instance().loss_terms(), sums, targets()).loss;
  }
  Named gradients() {
    Named all;
    for (const Parameter& p : engine_.instance().parameters().parameters())
      if (p.resident())
        all[p.name].assign(p.gradient.as<double>(), p.gradient.as<double>() + p.local_count());
    return all;
  }

 private:
  static EngineOptions options_of(const toy::ToyConfig& model, Mesh& mesh, const Options& o) {
    EngineOptions options = engine_options(
        tiny_gpt(), o.precision,
        (o.micro_batches + mesh.along(Axis::data).size() - 1) / mesh.along(Axis::data).size());
    options.model = model;
    options.micro_batch_size = o.rows;
    options.sequence = o.sequence;
    options.zero.stage = o.zero;
    options.drops_rows = o.damages;
    options.lag = 0;
    return options;
  }

  CpuDevice device_;
  EngineOptions options_;
  bool damages_;
  StepPlan plan_;
  Engine engine_;
  toy::ToyBatches batches_;
  std::int64_t micro_batches_;
  PhaseClock clock_;
};

/// The largest difference between tensors of the same name, over the names in `a`.
inline double largest_difference(const ToyRun::Named& a, const ToyRun::Named& b) {
  double most = 0;
  for (const auto& [name, values] : a)
    for (std::size_t i = 0; i < values.size(); ++i)
      most = std::fmax(most, std::abs(values[i] - b.at(name).at(i)));
  return most;
}

}  // namespace choir::test
