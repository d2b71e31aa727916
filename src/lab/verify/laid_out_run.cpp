#include "src/lab/verify/laid_out_run.hpp"

#include "choir/deck/deck.hpp"
#include "src/run/run_setup.hpp"
#include "src/train/step/step_planner.hpp"

namespace choir {
namespace {

std::unique_ptr<SyntheticBatches> batches_for(const EngineOptions& options) {
  return options.model.family().synthetic_batches(options.model, options.seed,
                                                  options.micro_batch_size);
}

EngineOptions options_of(const Deck& deck, int data_ranks) {
  Deck copy = deck;
  EngineOptions options = engine_options(deck, resolve_batch(copy, data_ranks));
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

ResidentBatches::ResidentBatches(Device& device, std::int64_t micro_batches)
    : device_(&device), places_(static_cast<std::size_t>(micro_batches)) {}

// Every field is followed by a row of its padding.
void ResidentBatches::keep(std::int64_t j, ModelBatch& batch) {
  Place& place = places_[static_cast<std::size_t>(j)];
  const auto row_bytes = [&](const BatchField& field) {
    return field.view.bytes() / static_cast<std::size_t>(batch.samples);
  };
  std::size_t bytes = 0, rows = 0;
  for (const BatchField& field : batch.fields()) {
    if (field.view.empty() || field.view.count() == 0) continue;
    bytes += 2 * padded_field_bytes(field.view);
    rows += static_cast<std::size_t>(batch.samples);
  }
  place.memory = Buffer(*device_, bytes);
  place.rows.clear();
  place.rows.reserve(rows);  // the fields have pointers to them
  auto* to = static_cast<std::byte*>(place.memory.data());
  for (BatchField& field : batch.fields()) {
    if (field.view.empty() || field.view.count() == 0) continue;
    device_->copy_from_host(to, field.view.data, field.view.bytes());
    field.view.data = to;
    field.resident = place.rows.data() + place.rows.size();
    for (std::int64_t row = 0; row < batch.samples; ++row)
      place.rows.push_back(to + static_cast<std::size_t>(row) * row_bytes(field));
    to += padded_field_bytes(field.view);
    if (field.shared == Shared::positions) {
      const std::vector<std::int32_t> padding(row_bytes(field) / sizeof(std::int32_t),
                                              field.padding);
      device_->copy_from_host(to, padding.data(), row_bytes(field));
      field.resident_padding = to;
    }
    to += padded_field_bytes(field.view);
  }
}

LaidOutRun::LaidOutRun(const Deck& deck, Workplace& place)
    : data_ranks_(place.mesh->layout().size(Axis::data)),
      micro_batches_(deck.train.micro_batches),
      options_(options_of(deck, data_ranks_)),
      batches_(batches_for(options_)),
      resident_(deck.data.preload == Preload::device
                    ? std::make_unique<ResidentBatches>(*place.device, options_.micro_batches)
                    : nullptr),
      plan_(plan_step(options_, place.mesh->layout(), place.mesh->rank(), place.mesh->node().size(),
                      false, place.device.get())),
      engine_(with_requests(options_, plan_), *place.device, *place.mesh, plan_.arena_bytes) {
  engine_.instance().initialise(options_.seed);
}

StepResult LaidOutRun::step(std::int64_t step) {
  StepTargets announced = targets(step);
  for (std::int64_t i = 0; i < micro_batches(); ++i)
    announced.by_micro_batch.push_back(batches_->targets(step * micro_batches() + i, 1));
  engine_.step(
      step, [&](std::int64_t j) { return micro_batch(step, j); }, announced, clock_);
  return engine_.finish(clock_);
}

// The number of micro-batches of a step on all ranks, including those without work.
std::int64_t LaidOutRun::places() const {
  return options_.micro_batches * data_ranks_;
}
// The number of micro-batches of a step that have work.
std::int64_t LaidOutRun::micro_batches() const {
  return micro_batches_ > 0 ? micro_batches_ : places();
}

// The index of this rank's j-th micro-batch; -1 if there is none left for it.
std::int64_t LaidOutRun::index_of(std::int64_t step, std::int64_t j) const {
  const std::int64_t place = engine_.micro_batch_index(0, j);
  return place < micro_batches() ? step * micro_batches() + place : -1;
}

ModelBatch LaidOutRun::micro_batch(std::int64_t step, std::int64_t j) {
  const std::int64_t index = index_of(step, j);
  ModelBatch batch = index < 0 ? batches_->padding() : batches_->micro_batch(index);
  if (resident_) resident_->keep(j, batch);
  return batch;
}

// The number of targets of the global batch.
ByTerm LaidOutRun::targets(std::int64_t step) const {
  return batches_->targets(step * micro_batches(), micro_batches());
}

}  // namespace choir
