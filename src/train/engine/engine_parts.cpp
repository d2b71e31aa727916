// What an Engine is made of, by its options: on which device it copies, keeps or records what, and
// the memory that all of it has.
#include <algorithm>
#include <string_view>

#include "choir/model/host_batch.hpp"
#include "choir/train/engine/engine.hpp"

namespace choir {
namespace {

/// What MPI does to device memory happens on the host and cannot be recorded.
bool recordable(Mesh& mesh) {
  for (int a = 0; a < kAxes; ++a) {
    const Communicator& ranks = mesh.along(static_cast<Axis>(a));
    const std::string_view transport = ranks.transport();
    if (ranks.size() > 1 && transport != "nccl" && transport != "null") return false;
  }
  return true;
}

/// Whether every step launches the same kernels.
bool fixed_shape(const EngineOptions& options) {
  return !options.model.is_speech();
}

/// Of sums over the tensor axis.
Summation order_of(const EngineOptions& options) {
  return options.reproducible ? Summation::tree : Summation::fast;
}

Schedule schedule_for(const EngineOptions& options, Mesh& mesh, const Device& device) {
  return training_schedule(options.pipeline, mesh.layout().size(Axis::pipeline),
                           static_cast<int>(options.micro_batches), device.plans_for());
}

}  // namespace

std::vector<BatchShape> shapes_of(const EngineOptions& options) {
  if (!options.model.is_speech())
    return {token_shape(options.model.gpt(), options.micro_batch_size)};
  if (options.shapes.empty())
    throw DeckError(
        "model.type = \"fastconformer\": how large micro-batches of audio are is not "
        "known here",
        "`choir train` takes it from its data");
  return options.shapes;
}

Engine::Engine(const EngineOptions& options, Device& device, Mesh& mesh, std::size_t arena_bytes)
    : options_(options),
      mesh_(&mesh),
      instance_({.model = options.model,
                 .precision = options.precision,
                 .seed = options.seed,
                 .training = true,
                 .sequence = options.sequence,
                 .zero = options.zero,
                 .pipeline = options.pipeline,
                 .offload = options.offload,
                 .freezing = options.freezing,
                 .separate_tied = options.reproducible,
                 .order = order_of(options),
                 .alter = options.alter,
                 .control = options.control},
                device, mesh, arena_bytes),
      schedule_(schedule_for(options, mesh, device)),
      staged_(!device.host_visible()),
      keeps_(staged_ || schedule_.shape.virtual_stages() > 1 ||
             mesh.layout().size(Axis::context) > 1),
      mixes_(options.model.is_speech() && options.shapes.size() > 1 &&
             schedule_.shape.virtual_stages() > 1),
      graphs_(options.cuda_graph && fixed_shape(options) && device.records_graphs() &&
              recordable(mesh) && options.offload.place != MemoryPlace::file),
      lag_(options.lag >= 0 ? options.lag
           : staged_        ? 1
                            : 0),
      control_(device, sizeof(ops::StepControl)) {
  instance_.arena().set_requests(options.arena_requests);
  ParameterStorage& storage = instance_.storage();
  instance_.statistics().record(storage.sharding(), options.micro_batches, options.control);
  optimizer_ = std::make_unique<AdamWOptimizer>(storage, device, options.adamw, options.seed);
  reducer_ = std::make_unique<GradientReducer>(storage, instance_.gatherer(), device,
                                               options.micro_batches, options.reproducible,
                                               options.control);
  if (options.spoil_gradients) reducer_->before_sums(options.spoil_gradients);
  partial_ = std::make_unique<PartialGradients>(
      instance_.parameters(), device, options.precision.gradient, mesh.along(Axis::tensor),
      order_of(options), *reducer_, options.control);
  Communicator& stages = instance_.stages();
  tied_ = std::make_unique<TiedGradients>(storage, device, stages, options.control);
  work_ = std::make_unique<TrainingWork>(
      instance_, *reducer_, *partial_,
      TrainingWork::Options{
          .micro_batches = options.micro_batches,
          .reproducible = options.reproducible,
          .passes = promised_live(schedule_.kind, schedule_.shape, stages.rank())});
  executor_ = std::make_unique<PipelineExecutor>(
      schedule_, stages,
      PipelineExecutor::Options{.watchdog = options.watchdog,
                                .clock = options.time_actions ? &device : nullptr});
  norm_ = std::make_unique<GradientNorm>(storage, device, lag_ + 1, options.reproducible,
                                         options.control);
  const std::int64_t sums = options.micro_batches * storage.sharding().data_ranks() + 1;
  loss_memory_ = Buffer(device, static_cast<std::size_t>(sums) * sizeof(double));
  losses_ = {loss_memory_.data(), DType::f64, {sums}};
  if (keeps_) copies_ = std::make_unique<SideStream>(device);
  for (int i = 0; i < lag_ + 1; ++i)
    slots_.push_back(std::make_unique<StepSlot>(device, slot_options()));
  for (int i = 0; i < lag_ + 2; ++i) done_.push_back(std::make_unique<Event>(device));
  spans_.reserve(slot_options().marks + 2);
  resume({.updates = 0, .loss_scale = options.loss_scaling.start, .good_steps = 0});
}

// Of the step the reductions, the update, the gathers and what remains; two phases a computation.
StepSlot::Options Engine::slot_options() const {
  const ActionList& actions =
      schedule_.actions[static_cast<std::size_t>(instance_.stages().rank())];
  const ContextAxis& context = instance_.context();
  StepSlot::Options slot{.micro_batches = options_.micro_batches,
                         .marks = staged_ ? 2 * actions.size() + 5 : 0,
                         .fixed = fixed_shape(options_)};
  if (!keeps_) return slot;
  for (BatchShape shape : shapes_of(options_)) {
    if (context.size() > 1) {
      slot.whole_tokens = shape.tokens;
      slot.share = position_share(shape.tokens, context.rank(), context.size());
      shape.tokens = slot.share.tokens;
    }
    slot.batch_bytes =
        std::max(slot.batch_bytes, bytes_of_fields(fields_of(options_.model, shape)));
  }
  return slot;
}

MemoryPlan Engine::memory() const {
  MemoryPlan plan;
  instance_.add_to(plan);
  optimizer_->add_to(plan);
  reducer_->add_to(plan);
  partial_->add_to(plan);
  tied_->add_to(plan);
  norm_->add_to(plan);
  plan.add("losses", loss_memory_.bytes());
  std::size_t batches = 0;
  for (const auto& slot : slots_) batches += slot->device_bytes();
  if (batches > 0) plan.add("micro-batches", batches);
  plan.add("step control", control_.bytes());
  return plan;
}

}  // namespace choir
