#include "choir/train/engine.hpp"

#include <cmath>

#include "choir/ops/reduce.hpp"

namespace choir {

Engine::Engine(const EngineOptions& options, Device& device, Mesh& mesh, std::size_t arena_bytes)
    : options_(options),
      mesh_(&mesh),
      instance_({options.model, options.precision, options.seed, true}, device,
                mesh.along(Axis::data), arena_bytes) {
  Communicator& data = mesh.along(Axis::data);
  ParameterStorage& storage = instance_.storage();
  optimizer_ = std::make_unique<AdamWOptimizer>(storage, device, options.adamw);
  reducer_ = std::make_unique<GradientReducer>(storage, device, data, options.micro_batches,
                                               options.reproducible);
  norm_ = std::make_unique<GradientNorm>(instance_.parameters(), device);
  const std::int64_t sums = options.micro_batches * data.size() + 1;
  loss_memory_ = Buffer(device, static_cast<std::size_t>(sums) * sizeof(double));
  losses_ = {loss_memory_.data(), DType::f64, {sums}};
}

std::int64_t Engine::micro_batch_index(std::int64_t step, std::int64_t j) const {
  const Communicator& data = mesh_->along(Axis::data);
  return (step * data.size() + data.rank()) * options_.micro_batches + j;
}

StepResult Engine::step(std::int64_t step, std::int64_t updates, const BatchOf& batch_of,
                        double valid_tokens, PhaseClock& clock) {
  const Stream& stream = instance_.stream();
  ops::zero(stream, losses_);
  for (std::int64_t j = 0; j < options_.micro_batches; ++j) {
    clock.enter(Phase::data);
    const TokenBatch batch = batch_of(j);
    forward_backward(j, batch, 1.0 / valid_tokens, clock);
  }
  clock.enter(Phase::comm);
  reducer_->finish();
  StepResult result;
  result.loss = reduce_losses() / valid_tokens;
  clock.enter(Phase::optimizer);
  norm_->compute(stream, mesh_->along(Axis::data), options_.grad_clip);
  result.learning_rate = options_.schedule.at(step);
  if (stream.kind() != DeviceKind::null) {
    result.grad_norm = norm_->norm().as<double>()[0];
    result.updated = std::isfinite(result.grad_norm) && std::isfinite(result.loss);
  }
  if (result.updated)
    optimizer_->step(stream, updates + 1, result.learning_rate, norm_->clip_factor().as<double>());
  clock.enter(Phase::other);
  return result;
}

void Engine::forward_backward(std::int64_t j, const TokenBatch& batch, double scale,
                              PhaseClock& clock) {
  clock.enter(Phase::forward);
  Pass& pass = instance_.pass();
  reducer_->begin_micro_batch(instance_.stream(), j);
  pass.begin(Mode::train,
             {.batch = batch.sequences, .tokens = batch.inputs.count() / batch.sequences},
             batch.first_sample);
  {
    const Tensor losses =
        instance_.model().loss(pass, batch.inputs, batch.targets, scale, *reducer_);
    const std::int64_t mine = mesh_->along(Axis::data).rank() * options_.micro_batches + j;
    ops::tree_sum(instance_.stream(), losses, losses_.slice(mine, 1));
  }
  clock.enter(Phase::backward);
  instance_.model().backward(pass, batch.inputs, *reducer_);
}

// Every micro-batch has its own place, zero on the other ranks: the sum over ranks is exact, and
// the tree over micro-batches does not know how they were distributed.
double Engine::reduce_losses() {
  Communicator& data = mesh_->along(Axis::data);
  const std::int64_t n = losses_.count() - 1;
  if (data.size() > 1)
    data.all_reduce(losses_.data, static_cast<std::size_t>(n), DType::f64, ReduceOp::sum);
  ops::tree_sum(instance_.stream(), losses_.slice(0, n), losses_.slice(n, 1));
  return instance_.stream().kind() == DeviceKind::null ? 0.0 : losses_.as<double>()[n];
}

MemoryPlan Engine::memory() const {
  MemoryPlan plan;
  instance_.add_to(plan);
  optimizer_->add_to(plan);
  reducer_->add_to(plan);
  norm_->add_to(plan);
  plan.add("losses", loss_memory_.bytes());
  return plan;
}

std::vector<std::string> Engine::non_finite_gradients() {
  std::vector<std::string> names;
  std::vector<double> sums;
  for (const Parameter& p : instance_.parameters().parameters()) {
    sums.assign(static_cast<std::size_t>((p.count() + ops::kNormChunk - 1) / ops::kNormChunk), 0.0);
    ops::sum_of_squares(instance_.stream(), p.gradient.reshaped({p.count()}),
                        {sums.data(), DType::f64, {static_cast<std::int64_t>(sums.size())}});
    for (const double sum : sums)
      if (!std::isfinite(sum)) {
        names.push_back(p.name);
        break;
      }
  }
  return names;
}

}  // namespace choir
