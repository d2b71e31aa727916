#include "src/train/verify/laid_out_run.hpp"

#include "choir/train/deck/deck_layout.hpp"
#include "choir/train/engine/run_setup.hpp"
#include "choir/train/synthetic/synthetic_tokens.hpp"
#include "choir/train/synthetic/synthetic_utterances.hpp"

namespace choir {
namespace {

std::unique_ptr<SyntheticBatches> batches_for(const EngineOptions& options) {
  if (options.model.is_speech())
    return std::make_unique<SyntheticUtterances>(options.seed, options.model.fastconformer());
  const GptConfig& gpt = options.model.gpt();
  return std::make_unique<SyntheticTokens>(options.seed, options.micro_batch_size, gpt.block_size,
                                           gpt.vocab_size);
}

EngineOptions options_of(const Deck& deck, int data_ranks, NegativeControl control) {
  Deck copy = deck;
  EngineOptions options = engine_options(deck, resolve_batch(copy, data_ranks));
  options.control = control;
  options.lag = 0;
  options.shapes = batches_for(options)->shapes();
  return options;
}

EngineOptions with_requests(EngineOptions options, const StepPlan& plan) {
  options.arena_requests = plan.arena_requests;
  return options;
}

}  // namespace

Deck laid_out(const Deck& deck, const VerifyLayout& layout) {
  std::vector<KeyProblem> problems;
  Deck result = lay_out(deck, layout, problems);
  throw_problems(problems, deck.source);
  return result;
}

LaidOutRun::LaidOutRun(const Deck& deck, Workplace& place, NegativeControl control)
    : data_ranks_(place.mesh->layout().size(Axis::data)),
      data_rank_(place.mesh->coordinates()[Axis::data]),
      micro_batches_(deck.train.micro_batches),
      options_(options_of(deck, data_ranks_, control)),
      batches_(batches_for(options_)),
      plan_(plan_step(options_, place.mesh->layout(), place.mesh->rank(), place.mesh->node().size(),
                      false, place.device.get())),
      engine_(with_requests(options_, plan_), *place.device, *place.mesh, plan_.arena_bytes),
      throws_(control == NegativeControl::throws_everywhere ||
              (control == NegativeControl::throws_alone &&
               place.mesh->rank() + 1 == place.mesh->world().size())) {
  engine_.instance().initialise(options_.seed);
}

StepResult LaidOutRun::step(std::int64_t step) {
  if (throws_) throw NumericError("thrown on purpose", "leave out --break");
  engine_.step(
      step, [&](std::int64_t j) { return micro_batch(step, j); }, valid_tokens(step), clock_);
  return engine_.finish(clock_);
}

// Of a step on all ranks, those without work included.
std::int64_t LaidOutRun::places() const {
  return options_.micro_batches * data_ranks_;
}
// That count.
std::int64_t LaidOutRun::micro_batches() const {
  return micro_batches_ > 0 ? micro_batches_ : places();
}
// What they count for, if a rule is broken.
std::int64_t LaidOutRun::empty_ones() const {
  return options_.control == NegativeControl::empty_counted ? places() - micro_batches() : 0;
}

// Of this rank's j-th; -1: none is left for it.
std::int64_t LaidOutRun::index_of(std::int64_t step, std::int64_t j) const {
  std::int64_t place = engine_.micro_batch_index(0, j);
  if (options_.control == NegativeControl::batch_off) place = data_rank_ + j;
  return place < micro_batches() ? step * micro_batches() + place : -1;
}

ModelBatch LaidOutRun::micro_batch(std::int64_t step, std::int64_t j) {
  const std::int64_t index = index_of(step, j);
  if (index < 0) return batches_->padding();
  ModelBatch batch = batches_->micro_batch(index);
  if (options_.control == NegativeControl::ids_by_position && !batch.sample_ids.empty())
    for (std::int64_t row = 0; row < batch.samples; ++row)
      batch.sample_ids.as<std::int64_t>()[row] -=
          (index - step * micro_batches() - j) * SyntheticUtterances::kMostRows;
  return batch;
}

// Of the global batch.
double LaidOutRun::valid_tokens(std::int64_t step) const {
  if (options_.control != NegativeControl::mean_of_means)
    return static_cast<double>(batches_->targets(step * micro_batches(), micro_batches()) +
                               empty_ones());
  std::int64_t mine = 0;
  for (std::int64_t j = 0; j < options_.micro_batches; ++j)
    if (const std::int64_t index = index_of(step, j); index >= 0)
      mine += batches_->targets(index, 1);
  return static_cast<double>(mine * data_ranks_);
}

}  // namespace choir
