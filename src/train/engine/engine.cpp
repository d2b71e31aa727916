#include "choir/train/engine/engine.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "choir/core/clock.hpp"
#include "choir/device/profile_range.hpp"
#include "choir/model/host_batch.hpp"
#include "choir/ops/reduce.hpp"

namespace choir {
namespace {

/// Plans are made and libraries warm after them.
constexpr std::int64_t kStepsBeforeGraph = 2;

/// After a failure, of which there is more to say than of the half-recorded graph.
void abandon_capture(Device& device, NativeStream stream) {
  try {
    device.destroy(device.end_capture(stream));
  } catch (const Error&) {
  }
}

}  // namespace

Engine::~Engine() {
  if (in_flight() == 0) return;
  try {
    instance_.stream().synchronize();
  } catch (const Error&) {  // a device that failed has said so before
  }
}

void Engine::resume(const UpdateState& state) {
  CHOIR_CHECK(in_flight() == 0, "{} steps in flight", in_flight());
  state_ = state;
  if (!options_.loss_scaling.dynamic()) state_.loss_scale = options_.loss_scaling.start;
  const ops::StepControl start{.updates = static_cast<double>(state_.updates),
                               .loss_scale = state_.loss_scale,
                               .good_steps = static_cast<double>(state_.good_steps)};
  instance_.device().copy_from_host(control(), &start, sizeof start);
}

std::int64_t Engine::micro_batch_index(std::int64_t step, std::int64_t j) const {
  const Sharding& sharding = instance_.storage().sharding();
  return step * sharding.data_ranks() * options_.micro_batches +
         sharding.first_micro_batch(options_.micro_batches) + j * sharding.micro_batch_stride();
}

void Engine::step(std::int64_t step, const BatchOf& batch_of, double valid_tokens,
                  PhaseClock& clock) {
  CHOIR_CHECK(in_flight() <= lag_, "{} steps in flight, of which none was finished", in_flight());
  const double start = now_seconds();
  const Stream& stream = instance_.stream();
  const ProfileRange range(stream, "step");
  StepSlot& slot = slot_of(queued_);
  slot.alone = in_flight() == 0;
  slot.inputs().learning_rate = options_.schedule.at(step);
  slot.inputs().tokens = valid_tokens;
  if (keeps_) {
    if (!staged_) clock.enter(Phase::data);
    stage(slot, batch_of);
  }
  slot.host_seconds = now_seconds() - start;
  stream.copy_from_host(control(), &slot.inputs(), ops::kStepInputBytes);
  // A recorded step cannot wait in its middle for what is not part of it.
  if (graphs_) settle_readers(clock);
  *fmt::format_to_n(name_, sizeof name_ - 1, "step {}", step + 1).out = 0;
  run(slot, [&] { queue_work(slot, batch_of, clock); });
  stream.copy_to_host(&slot.results(), control(), sizeof(ops::StepControl));
  done(queued_).record(stream);
  ++queued_;
  if (!staged_) clock.enter(Phase::other);
}

void Engine::stage(StepSlot& slot, const BatchOf& batch_of) {
  const double start = now_seconds();
  for (std::int64_t j = 0; j < options_.micro_batches; ++j)
    slot.stage(copies_->stream(), j, batch_of(j));
  slot.publish(copies_->stream(), instance_.stream());
  slot.data_seconds = now_seconds() - start;
}

// The kernels of a step have the same arguments in every step that uses the same slot: the arena
// hands out the same addresses, and what changes is in device memory. So each slot's work is
// recorded once, and again when somebody else holds memory of the arena.
template <class Work>
void Engine::run(StepSlot& slot, const Work& work) {
  if (!graphs_ || queued_ < kStepsBeforeGraph) return work();
  Device& device = instance_.device();
  const NativeStream stream = instance_.stream().native();
  const std::size_t key = instance_.arena().live();
  ParameterGatherer& gatherer = instance_.gatherer();
  if (slot.graph && slot.graph_key != key) slot.drop_graph();
  if (!slot.graph) {
    gatherer.forget();  // the graph gathers everything by itself
    device.begin_capture(stream);
    try {
      work();
    } catch (...) {
      abandon_capture(device, stream);
      throw;
    }
    slot.graph = device.end_capture(stream);
    slot.graph_key = key;
  }
  device.launch(slot.graph, stream);
  gatherer.forget();  // what was gathered for others between steps is gone
}

void Engine::enter(StepSlot& slot, PhaseClock& clock, Phase phase) {
  staged_ ? slot.marks.enter(instance_.stream(), phase) : clock.enter(phase);
}

void Engine::queue_work(StepSlot& slot, const BatchOf& batch_of, PhaseClock& clock) {
  const Stream& stream = instance_.stream();
  slot.marks.begin();
  enter(slot, clock, Phase::other);
  ops::begin_step(stream, control());
  ops::zero(stream, losses_);
  forward_backward(slot, batch_of, clock);
  enter(slot, clock, Phase::comm);
  reducer_->finish();
  tied_->join(stream);
  reduce_losses();
  enter(slot, clock, Phase::optimizer);
  const auto place = static_cast<int>(queued_ % static_cast<std::int64_t>(slots_.size()));
  Communicator* const holders[] = {&mesh_->along(Axis::tensor), &instance_.stages()};
  norm_->compute(stream, holders, place);
  ops::end_step(stream, {.control = control(),
                         .square_sum = norm_->square_sum(),
                         .loss_sum = losses_.slice(losses_.count() - 1, 1),
                         .max_norm = options_.grad_clip,
                         .beta1 = options_.adamw.beta1,
                         .beta2 = options_.adamw.beta2,
                         .scaling = options_.loss_scaling});
  settle_readers(clock);
  instance_.statistics().update(stream, control());
  ParameterGatherer& gatherer = instance_.gatherer();
  const bool gathers = options_.control != NegativeControl::stale_gather;
  if (gathers) gatherer.forget();  // nothing reads parameters while they change
  optimizer_->step(stream, control(), [&](const Bucket& bucket) {
    if (gathers) gatherer.updated(bucket);
  });
  enter(slot, clock, Phase::comm);
  if (gathers) gatherer.finish_update();
  enter(slot, clock, Phase::other);
}

void Engine::settle_readers(PhaseClock& clock) {
  const auto wait = std::exchange(before_update_, nullptr);
  if (!wait) return;
  const Phase phase = clock.current();
  if (!staged_) clock.enter(Phase::other);
  wait(instance_.stream());
  if (!staged_) clock.enter(phase);
}

void Engine::forward_backward(StepSlot& slot, const BatchOf& batch_of, PhaseClock& clock) {
  struct Here {
    Engine& engine;
    StepSlot& slot;
    const BatchOf& batch_of;
    PhaseClock& clock;
  } here{*this, slot, batch_of, clock};
  // One pointer each: nothing is allocated for them.
  work_->begin(
      {.batch_of =
           [&here](std::int64_t j) {
             if (here.engine.keeps_) return here.slot.staged(j);
             here.clock.enter(Phase::data);
             return here.batch_of(j);
           },
       .loss_factor = &control()->loss_factor,
       .loss_sum =
           [&here](std::int64_t j) {
             return here.engine.losses_.slice(here.engine.micro_batch_index(0, j), 1);
           },
       .enter = [&here](Phase phase) { here.engine.enter(here.slot, here.clock, phase); }});
  if (mixes_) instance_.arena().begin_sequence();
  executor_->run(*work_, name_);
  instance_.arena().end_sequence();
}

// Every micro-batch has its own place, zero on the other ranks: the sum over ranks is exact, and
// the tree over micro-batches does not know how they were distributed. Ranks of the context axis
// share a place.
void Engine::reduce_losses() {
  const std::int64_t n = losses_.count() - 1;
  for (Communicator* ranks : {&instance_.storage().sharding().data(), &instance_.stages()})
    if (ranks->size() > 1 && options_.control != NegativeControl::loss_unreduced &&
        (ranks != &instance_.stages() || options_.control != NegativeControl::stage_loss_kept))
      ranks->all_reduce(losses_.data, static_cast<std::size_t>(n), DType::f64, ReduceOp::sum);
  ops::tree_sum(instance_.stream(), losses_.slice(0, n), losses_.slice(n, 1));
}

StepResult Engine::finish(PhaseClock& clock) {
  CHOIR_CHECK(in_flight() > 0, "no step is in flight");
  const StepSlot& slot = slot_of(finished_);
  done(finished_).synchronize();
  if (staged_) report_phases(slot, clock);
  ++finished_;
  const ops::StepControl& c = slot.results();
  state_ = {.updates = static_cast<std::int64_t>(c.updates),
            .loss_scale = c.loss_scale,
            .good_steps = static_cast<std::int64_t>(c.good_steps)};
  return {.loss = c.loss,
          .grad_norm = c.gradient_norm,
          .learning_rate = c.learning_rate,
          .updated = c.apply != 0,
          .overflow = c.apply == 0 && options_.loss_scaling.dynamic() &&
                      c.step_loss_scale > ops::kLowestLossScale,
          .loss_scale = c.step_loss_scale};
}

// From the end of the step before to the end of this one. What the stream waited between the two
// it waited for the host, and the host for data, or not.
void Engine::report_phases(const StepSlot& slot, PhaseClock& clock) {
  const double gap =
      slot.alone ? slot.host_seconds
                 : std::max(0.0, slot.marks.first().seconds_since(done(finished_ + lag_ + 1)));
  const double data = std::min(gap, slot.data_seconds);
  spans_.clear();
  spans_.push_back({Phase::other, gap - data});
  spans_.push_back({Phase::data, data});
  slot.marks.spans_until(done(finished_), spans_);
  clock.replay(spans_, now_seconds());
}

std::vector<std::string> Engine::non_finite_gradients() const {
  if (finished_ == 0) return {};
  return norm_->not_finite(
      static_cast<int>((finished_ - 1) % static_cast<std::int64_t>(slots_.size())));
}

std::string Engine::graph_use() const {
  if (graphs_)
    return fmt::format("a step is recorded after {} steps and then replayed as a whole",
                       kStepsBeforeGraph);
  if (!options_.cuda_graph) return "off";
  if (options_.model.is_speech())
    return "not used: micro-batches differ in shape, and a recorded step has one";
  if (!instance_.device().records_graphs())
    return fmt::format("of no effect on the {} device", name_of(instance_.device().kind()));
  if (options_.offload.place == MemoryPlace::file)
    return "not used: reading and writing a file cannot be recorded";
  return fmt::format("not used: steps with transport '{}' cannot be recorded",
                     mesh_->along(Axis::data).transport());
}

}  // namespace choir
