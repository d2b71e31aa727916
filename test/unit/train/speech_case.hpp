#pragma once
// A small training run of a FastConformer with the utterances of `choir verify`, for tests of the
// engine on one rank and on several.
#include <memory>
#include <vector>

#include "src/models/fastconformer/data.hpp"
#include "test/unit/models/fastconformer/fastconformer_case.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir::test {

/// `micro_batches`: number per rank.
inline EngineOptions speech_options(const FastConformerConfig& model, const char* precision,
                                    std::int64_t micro_batches, bool reproducible = false) {
  EngineOptions options = engine_options(tiny_gpt(), precision, micro_batches, reproducible);
  options.model = model;
  options.shapes = SyntheticUtterances(options.seed, model).shapes();
  options.lag = 0;
  return options;
}

inline FastConformerConfig batch_normed() {
  FastConformerConfig c = tiny_conformer();
  c.conv_norm = ConvNorm::batchnorm;
  c.dropout = 0.1;
  return c;
}

class SpeechRun {
 public:
  /// `work`: number of micro-batches of a step that are not empty; 0: all.
  SpeechRun(const EngineOptions& options, Mesh& mesh, std::int64_t work = 0,
            std::unique_ptr<Device> device = std::make_unique<CpuDevice>())
      : device_(std::move(device)),
        speech_(options.seed, options.model.as<FastConformerConfig>()),
        plan_(plan_step(options, mesh.layout(), mesh.rank(), mesh.node().size(), false,
                        device_.get())),
        engine_(std::make_unique<Engine>(options, *device_, mesh, plan_.arena_bytes)),
        work_(work > 0 ? work : options.micro_batches * mesh.along(Axis::data).size()) {
    engine_->instance().initialise(options.seed);
  }

  Engine& engine() { return *engine_; }
  /// See EngineRun::end().
  void end() { engine_.reset(); }
  const StepPlan& plan() const { return plan_; }
  SyntheticUtterances& speech() { return speech_; }
  ParameterSet& parameters() { return engine_->instance().parameters(); }

  StepResult step() { return step(speech_.targets(step_ * work_, work_)); }
  StepResult step(const ByTerm& targets) { return step_on(step_, targets); }
  /// Runs the next step, on the utterances of step `of`.
  StepResult step_of(std::int64_t of) { return step_on(of, speech_.targets(of * work_, work_)); }
  /// Runs the next step with the utterances of one micro-batch in all micro-batches of all ranks.
  StepResult step_of_one(std::int64_t micro_batch) {
    ByTerm targets = speech_.targets(micro_batch, 1);
    for (std::size_t t = 0; t < targets.size(); ++t) targets[t] *= static_cast<double>(work_);
    engine_->step(
        step_, [&](std::int64_t) { return speech_.micro_batch(micro_batch); }, targets, clock_);
    ++step_;
    return engine_->finish(clock_);
  }

  /// Running means and variances of this rank's channels of the norms.
  std::vector<double> running() {
    std::vector<double> all;
    for (const RunningStatistics& norm : parameters().running_statistics())
      if (norm.weight->resident())
        for (const TensorView& x : {norm.mean, norm.variance})
          for (std::int64_t i = 0; i < x.count(); ++i) all.push_back(ref::load(x.data, x.dtype, i));
    return all;
  }

 private:
  StepResult step_on(std::int64_t of, const ByTerm& targets) {
    engine_->step(
        step_,
        [&](std::int64_t j) {
          const std::int64_t place = engine_->micro_batch_index(0, j);
          return place < work_ ? speech_.micro_batch(of * work_ + place) : speech_.padding();
        },
        targets, clock_);
    ++step_;
    return engine_->finish(clock_);
  }

  std::unique_ptr<Device> device_;
  SyntheticUtterances speech_;
  StepPlan plan_;
  std::unique_ptr<Engine> engine_;
  std::int64_t work_, step_ = 0;
  PhaseClock clock_;
};

}  // namespace choir::test
