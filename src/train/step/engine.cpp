// One optimizer step, queued, recorded and finished.

#include "src/train/step/engine.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "choir/core/error.hpp"
#include "choir/device/device.hpp"
#include "kernels/sums/sums.hpp"
#include "src/comm/agreement.hpp"
#include "src/comm/null_communicator.hpp"
#include "src/comm/watch/watchdog.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/device/cuda.hpp"
#include "src/device/null_device.hpp"
#include "src/train/step/loss_table.hpp"

namespace choir {

namespace {

/// Steps before the first recording; after them plans exist and libraries are warm.
constexpr std::int64_t kStepsBeforeGraph = 2;

/// Limits for steps of different shapes: recorded graphs per slot, each some megabytes of device
/// memory, and shapes that are remembered as met before.
constexpr std::size_t kGraphs = 16, kShapesMet = 4096;

/// True if a graph can record the collectives. MPI processes device memory on the host, which
/// cannot be recorded.
bool recordable(Mesh& mesh) {
  for (int a = 0; a < kAxes; ++a) {
    const Communicator& ranks = mesh.along(static_cast<Axis>(a));
    const std::string_view transport = ranks.transport();
    if (ranks.size() > 1 && transport != "nccl" && transport != "null") return false;
  }
  return true;
}

/// True if every step launches the same kernels.
bool fixed_shape(const EngineOptions& options) {
  return options.model.family().fixed_shape();
}

std::shared_ptr<const Schedule> schedule_for(const EngineOptions& options, Mesh& mesh,
                                             const Device& device) {
  return training_schedule(options.pipeline, mesh.layout().size(Axis::pipeline),
                           static_cast<int>(options.micro_batches), device.plans_for());
}

/// The stage with the embedding that a tied head shares.
int embedding_stage(const EngineOptions& options, int stages) {
  const std::vector<TiedNames> tied = options.model.family().tied(options.model);
  return tied.empty() ? 0
                      : stage_of_unit(options.model, options.pipeline, stages, tied.front().unit);
}

/// Aborts all communication unless this object is destroyed in time.
class Patience {
 public:
  ~Patience() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  static constexpr std::chrono::seconds kLimit{5}, kForAbort{1};
  void watch() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kLimit, [this] { return over_; }))
      abort_communicators(kForAbort.count());
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_{[this] { watch(); }};
};

/// Ranks record collectives together or not at all: a rank that records while its peers replay
/// would wait for them forever. `held` is the memory of the arena that is live between steps. Costs
/// a message per step, so it belongs to watch.calls. Collective.
void require_same_choice(Communicator& world, const char* choice, std::size_t held) {
  const std::string mine = fmt::format("{} its step with {} of the arena live", choice,
                                       format_bytes(static_cast<double>(held)));
  const std::vector<std::string> all = gather_texts(world, mine);
  const auto first_word = [](const std::string& text) { return text.substr(0, text.find(' ')); };
  together(world, [&] {
    for (std::size_t r = 1; r < all.size(); ++r)
      if (first_word(all[r]) != first_word(all[0]))
        throw CommError(fmt::format("rank {} {}, but rank 0 {}: all ranks must record together", r,
                                    all[r], all[0]),
                        "set train.cuda_graph to false, and report this as a defect");
  });
}

/// Called after a failure; the original error matters more than the half-recorded graph.
void abandon_capture(Device& device, NativeStream stream) {
  try {
    device.destroy(device.end_capture(stream));
  } catch (const Error&) {
  }
}

}  // namespace

namespace {

/// An integer below 2^62, so that its negative is one, too.
std::int64_t hash_of(const std::vector<std::int64_t>& shapes, bool recorded, bool records) {
  const std::string_view bytes(reinterpret_cast<const char*>(shapes.data()),
                               shapes.size() * sizeof(std::int64_t));
  return static_cast<std::int64_t>(fnv1a(bytes) >> 4 << 2) + (recorded ? 2 : 0) + (records ? 1 : 0);
}

/// An integer below 2^32.
double hash_of(const double (&targets)[ops::kMostLossTerms]) {
  return static_cast<double>(
      fnv1a(std::string_view(reinterpret_cast<const char*>(targets), sizeof targets)) >> 32);
}

/// True if ranks hold only parts of micro-batches.
bool shares_batches(const EngineOptions& options, const BatchRanks& ranks) {
  const ModelBatch batch = options.model.family().fields(options.model, shapes_of(options).front());
  return std::ranges::any_of(batch.fields(),
                             [&](const BatchField& field) { return ranks.share(field); });
}

}  // namespace

namespace {

/// The options, with offloaded memory for averages and for the tree of reproducible mode.
EngineOptions with_offload(EngineOptions options) {
  options.offload.average = options.ema > 0;
  if (options.offload.gradient_sums > 0 && options.reproducible)
    for (std::int64_t held = 1; held < options.micro_batches; held *= 2)
      ++options.offload.gradient_sums;
  return options;
}

}  // namespace

Engine::Engine(const EngineOptions& options, Device& device, Mesh& mesh, std::size_t arena_bytes)
    : options_(with_offload(options)),
      mesh_(&mesh),
      instance_(options_, device, mesh, arena_bytes),
      schedule_(schedule_for(options, mesh, device)),
      staged_(!device.host_visible()),
      keeps_(staged_ || options.drops_rows || schedule_->shape.virtual_stages() > 1 ||
             shares_batches(options, instance_.batch_ranks(Mode::train))),
      mixes_(!fixed_shape(options) && options.shapes.size() > 1 &&
             schedule_->shape.virtual_stages() > 1),
      graphs_(options.cuda_graph && device.records_graphs() && recordable(mesh) &&
              options.offload.place != MemoryPlace::file),
      agrees_(graphs_ && !fixed_shape(options) && mesh.along(Axis::data).size() > 1),
      lag_(options.lag >= 0 ? options.lag
           : staged_        ? 1
                            : 0),
      control_(device, sizeof(ops::StepControl)) {
  instance_.arena().set_requests(options.arena_requests);
  cuda::set_dependent_launch(device, graphs_ && options.dependent_launch);
  // The sums of a rehearsal are made from this rank alone.
  if (rehearsal_of(mesh.world()) != nullptr) options_.compare_counts = false;
  ParameterStorage& storage = instance_.storage();
  instance_.statistics().record(storage.sharding(), options.micro_batches);
  Optimizer::Options optimizer = options.optimizer;
  optimizer.scale = rate_scales(storage.parameters(), options.rate_scales);
  optimizer_ =
      std::make_unique<Optimizer>(storage, device, optimizer, options.seed, options.reproducible);
  if (options.ema > 0) {
    averages_ = std::make_unique<AveragedWeights>(storage, device, options.ema);
    optimizer_->average_into(averages_.get());
  }
  Communicator& stages = instance_.stages();
  gradients_ = std::make_unique<GradientPath>(
      storage, instance_.gatherer(), device, mesh.along(Axis::tensor), stages,
      GradientPath::Options{.micro_batches = options.micro_batches,
                            .reproducible = options.reproducible,
                            .embedding_stage = embedding_stage(options, stages.size()),
                            .before_sums = options.spoil_gradients});
  work_ = std::make_unique<TrainingWork>(
      instance_, *gradients_,
      TrainingWork::Options{
          .micro_batches = options.micro_batches,
          .passes = promised_live(schedule_->kind, schedule_->shape, stages.rank())});
  executor_ = std::make_unique<PipelineExecutor>(
      *schedule_, mesh.stage_channels(std::max(1, schedule_->channels)),
      PipelineExecutor::Options{.watchdog = options.watchdog,
                                .clock = options.time_actions ? &device : nullptr,
                                .validated = true});
  norm_ = std::make_unique<TrainedNorm>(
      storage, device, TrainedNorm::Options{.places = lag_ + 1, .exact = options.reproducible});
  if (keeps_) copies_ = std::make_unique<SideStream>(device);
  for (int i = 0; i < lag_ + 1; ++i)
    slots_.push_back(std::make_unique<StepSlot>(device, slot_options()));
  for (int i = 0; i < lag_ + 2; ++i) done_.push_back(std::make_unique<Event>(device));
  spans_.reserve(slot_options().marks + 2);
  resume({.updates = 0, .loss_scale = options.loss_scaling.start, .good_steps = 0});
}

// Marks of a step: the reductions, the update, the gathers, the rest, and two phases per
// computation.
StepSlot::Options Engine::slot_options() const {
  const ActionList& actions =
      schedule_->actions[static_cast<std::size_t>(instance_.stages().rank())];
  const BatchRanks ranks = instance_.batch_ranks(Mode::train);
  StepSlot::Options slot{
      .micro_batches = options_.micro_batches,
      .marks = staged_ ? 2 * actions.size() + 5 : 0,
      .fixed = fixed_shape(options_),
      .graphs = fixed_shape(options_) ? 1 : kGraphs,
      .ranks = ranks,
      .terms = instance_.loss_terms().size(),
      .places = options_.micro_batches * instance_.storage().sharding().data_ranks(),
      .sums = options_.reproducible ? 0 : norm_->count()};
  if (!keeps_) return slot;
  for (const BatchShape& shape : shapes_of(options_)) {
    const ModelBatch whole = options_.model.family().fields(options_.model, shape);
    ModelBatch share = whole;
    for (BatchField& field : share.fields())
      if (ranks.share(field)) field.view.shape = share_shape(whole, field, ranks);
    slot.batch_bytes = std::max(slot.batch_bytes, bytes_of_fields(share));
  }
  return slot;
}

// A step that waits for a dead peer, recorded or not, ends only when its communicators are aborted.
// They must be aborted before the graphs are destroyed, because NCCL waits for that.
Engine::~Engine() {
  if (in_flight() == 0) return;
  Patience patience;
  try {
    instance_.stream().synchronize();
  } catch (const Error&) {  // a failed device has already reported its error
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

void Engine::step(std::int64_t step, const BatchOf& batch_of, const StepTargets& announced,
                  PhaseClock& clock) {
  const std::vector<LossTerm>& terms = instance_.loss_terms();
  const ByTerm targets = targets_of_terms(terms, announced.all);
  CHOIR_CHECK(in_flight() <= lag_, "{} steps in flight, none of them finished", in_flight());
  const double start = now_seconds();
  const Stream& stream = instance_.stream();
  const ProfileRange range(stream, "step");
  StepSlot& slot = slot_of(queued_);
  slot.alone = in_flight() == 0;
  slot.targets = announced;
  slot.step = step + 1;
  slot.inputs().learning_rate = options_.schedule.at(step);
  for (std::size_t t = 0; t < ops::kMostLossTerms; ++t) {
    slot.inputs().targets[t] = t < terms.size() ? targets[t] : 0;
    slot.inputs().weights[t] = t < terms.size() ? terms[t].weight : 0;
    slot.inputs().dropped[t] = 0;
  }
  slot.inputs().targets_hash = hash_of(slot.inputs().targets);
  if (keeps_) {
    if (!staged_) clock.enter(Phase::data);
    stage(slot, batch_of);
  }
  slot.host_seconds = now_seconds() - start;
  stream.copy_from_host(control(), &slot.inputs(), ops::kStepInputBytes);
  // A recorded step cannot wait in its middle for something outside the graph.
  if (graphs_) settle_readers(clock);
  print_into(name_, "step {}", step + 1);
  run(slot, [&] { queue_work(slot, batch_of, clock); });
  stream.copy_to_host(&slot.results(), control(), sizeof(ops::StepControl));
  done(queued_).record_time(stream);
  ++queued_;
  if (!staged_) clock.enter(Phase::other);
}

// Ranks of the context axis have the same rows, of which only the first counts the damaged ones.
void Engine::stage(StepSlot& slot, const BatchOf& batch_of) {
  const double start = now_seconds();
  const bool counts = mesh_->along(Axis::context).rank() == 0;
  ByTerm dropped(slot.targets.all.size(), 0);
  for (std::int64_t j = 0; j < options_.micro_batches; ++j) {
    const ModelBatch batch = batch_of(j);
    slot.stage(copies_->stream(), j, batch);
    for (std::size_t t = 0; t < dropped.size() && counts; ++t) dropped[t] += batch.dropped[t];
  }
  std::ranges::copy(targets_of_terms(instance_.loss_terms(), dropped), slot.inputs().dropped);
  slot.publish(copies_->stream(), instance_.stream());
  slot.data_seconds = now_seconds() - start;
}

// The kernels of a step have the same arguments in every step with the same slot and the same
// shapes: the arena returns the same addresses, and changing values are in device memory. So each
// slot's work is recorded once, and again if other memory of the arena is live. If shapes differ,
// they are recorded when they come for the second time.
template <class Work>
void Engine::run(StepSlot& slot, const Work& work) {
  if (!graphs_) return work();
  const bool fixed = fixed_shape(options_);
  StepGraphs::Key key{.held = instance_.arena().live(), .shapes = {}};
  if (!fixed) key.shapes = slot.shapes();
  NativeGraph graph = slot.graphs.find(key);
  const bool known = fixed || met_.contains(key.shapes);
  const bool records = known && queued_ >= kStepsBeforeGraph;
  if (!agreed(hash_of(key.shapes, graph != nullptr, records))) return work();
  if (!known) {
    if (met_.size() == kShapesMet) met_.clear();
    met_.insert(key.shapes);
  }
  if (mesh_->checks_calls())
    require_same_choice(mesh_->world(),
                        !records ? "queues"
                        : graph  ? "replays"
                                 : "records",
                        key.held);
  if (!records) return work();
  Device& device = instance_.device();
  const NativeStream stream = instance_.stream().native();
  ParameterGatherer& gatherer = instance_.gatherer();
  if (graph == nullptr) {
    gatherer.forget();  // the graph gathers everything itself
    device.begin_capture(stream);
    try {
      work();
    } catch (...) {
      abandon_capture(device, stream);
      throw;
    }
    graph = device.end_capture(stream);
    slot.graphs.add(std::move(key), graph);
  }
  device.launch(graph, stream);
  gatherer.forget();  // parameters gathered for others between steps are gone
}

// Recording and replaying are collective: NCCL allows no rank to queue what the others replay. Data
// ranks can have micro-batches of other shapes, and then all of them queue the step and remember
// nothing of it, so that what they have recorded stays the same. The host is a step ahead of the
// device, which is busy while the ranks agree.
bool Engine::agreed(std::int64_t use) {
  if (!agrees_) return true;
  std::int64_t extremes[] = {use, -use};
  mesh_->world().all_reduce(extremes, std::size(extremes), DType::i64, ReduceOp::max);
  return extremes[0] == -extremes[1];
}

void Engine::enter(StepSlot& slot, PhaseClock& clock, Phase phase) {
  staged_ ? slot.marks.enter(instance_.stream(), phase) : clock.enter(phase);
}

void Engine::queue_work(StepSlot& slot, const BatchOf& batch_of, PhaseClock& clock) {
  const Stream& stream = instance_.stream();
  Communicator& shares = instance_.storage().sharding().data();
  slot.marks.begin();
  enter(slot, clock, Phase::other);
  if (options_.drops_rows && shares.size() > 1)
    shares.all_reduce(control()->dropped, ops::kMostLossTerms, DType::f64, ReduceOp::sum);
  ops::begin_step(stream, control());
  slot.losses.begin(stream, &control()->targets_hash);
  forward_backward(slot, batch_of, clock);
  enter(slot, clock, Phase::comm);
  enter_place(stream, {.part = WorkPart::gradients});
  gradients_->finish(stream);
  enter(slot, clock, Phase::optimizer);
  enter_place(stream, {.part = WorkPart::update});
  const auto place = static_cast<int>(queued_ % static_cast<std::int64_t>(slots_.size()));
  Communicator& tensor = mesh_->along(Axis::tensor);
  Communicator* const holders[] = {&tensor, &instance_.stages()};
  norm_->collect(stream, place);
  // The sums of the norm travel with the losses, unless the reproducible mode makes them many.
  const bool together = !options_.reproducible;
  slot.losses.reduce(stream, {shares, tensor, instance_.stages()},
                     together ? norm_->sums(place) : TensorView());
  if (!together) norm_->reduce(holders, place);
  norm_->total(stream, place);
  ops::end_step(stream, {.control = control(),
                         .square_sum = norm_->square_sum(),
                         .loss_sums = slot.losses.sums(),
                         .counts = options_.compare_counts ? slot.losses.counts() : TensorView{},
                         .hashes = slot.losses.hashes(),
                         .ranks = shares.size() * instance_.stages().size() * tensor.size(),
                         .max_norm = options_.grad_clip,
                         .beta1 = options_.optimizer.beta1,
                         .beta2 = options_.optimizer.beta2,
                         .scaling = options_.loss_scaling});
  optimizer_->prepare(
      stream, {.holders = holders, .gradient = norm_.get(), .place = place, .control = control()});
  settle_readers(clock);
  instance_.statistics().update(stream, control());
  ParameterGatherer& gatherer = instance_.gatherer();
  gatherer.forget();  // nobody reads parameters while they change
  optimizer_->step(stream, control(), [&](const Bucket& bucket) { gatherer.updated(bucket); });
  if (averages_) averages_->update(stream, control());
  enter(slot, clock, Phase::comm);
  enter_place(stream, {.part = WorkPart::gather});
  gatherer.finish_update();
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

// Gathers of the last step and a save that is being copied still read what changes here.
void Engine::exchange_averages() {
  CHOIR_CHECK(averages_ != nullptr && in_flight() == 0, "no averages, or {} steps in flight",
              in_flight());
  if (const auto wait = std::exchange(before_update_, nullptr)) wait(instance_.stream());
  instance_.gatherer().complete_update();
  instance_.gatherer().finish_update();
  averages_->exchange(instance_.stream());
  instance_.publish();
}

void Engine::forward_backward(StepSlot& slot, const BatchOf& batch_of, PhaseClock& clock) {
  struct Here {
    Engine& engine;
    StepSlot& slot;
    const BatchOf& batch_of;
    PhaseClock& clock;
  } here{*this, slot, batch_of, clock};
  // The lambdas capture a single pointer, so that nothing is allocated for them.
  work_->begin(
      {.batch_of =
           [&here](std::int64_t j) {
             if (here.engine.keeps_) return here.slot.staged(j);
             here.clock.enter(Phase::data);
             return here.batch_of(j);
           },
       .loss_factors = control()->loss_factors,
       .losses_of =
           [&here](std::int64_t j) {
             return here.slot.losses.of(here.engine.micro_batch_index(0, j));
           },
       .enter = [&here](Phase phase) { here.engine.enter(here.slot, here.clock, phase); }});
  if (mixes_) instance_.arena().begin_sequence();
  executor_->run(*work_, name_);
  instance_.arena().end_sequence();
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
  if (c.miscounted != 0) refuse(slot);
  ByTerm terms(instance_.loss_terms().size(), 0), targets = terms;
  std::copy_n(c.term_losses, terms.size(), terms.begin());
  std::copy_n(c.targets, targets.size(), targets.begin());
  return {.loss = c.loss,
          .terms = terms,
          .targets = targets,
          .grad_norm = c.gradient_norm,
          .learning_rate = c.learning_rate,
          .updated = c.apply != 0,
          .overflow = c.apply == 0 && options_.loss_scaling.dynamic() &&
                      c.step_loss_scale > ops::kLowestLossScale,
          .loss_scale = c.step_loss_scale};
}

// All ranks have the same sums of counts, so all of them throw.
void Engine::refuse(const StepSlot& slot) const {
  const ops::StepControl& c = slot.results();
  Miscount found{.step = slot.step, .terms = instance_.loss_terms(), .announced = slot.targets};
  if (c.miscounted > 0) {
    found.term = static_cast<int>(c.miscounted) - 1;
    found.counted = slot.losses.counted(static_cast<std::size_t>(found.term));
  }
  NumericError error = miscount_error(found);
  error.set_agreed_ranks(mesh_->world().size());
  throw error;
}

// Reports phases from the end of the previous step to the end of this one. In the gap between them
// the stream waited for the host, which may have waited for data.
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
  std::string starts;
  if (options_.dependent_launch)
    starts = cuda::has_dependent_launch(instance_.device())
                 ? "; its kernels begin before the end of the kernel ahead"
                 : "; its kernels cannot begin early on a card older than sm_90";
  if (graphs_ && fixed_shape(options_))
    return fmt::format("a step is recorded after {} steps and then replayed as a whole{}",
                       kStepsBeforeGraph, starts);
  if (graphs_)
    return fmt::format(
        "a step is recorded when its shapes come again{}, and then replayed as a whole; at most {} "
        "steps are kept{}",
        agrees_ ? " and are those of all data-parallel ranks" : "", kGraphs, starts);
  if (!options_.cuda_graph) return "off";
  if (!instance_.device().records_graphs())
    return fmt::format("ignored on {}", name_of(instance_.device().kind()));
  if (options_.offload.place == MemoryPlace::file)
    return "not used: reading and writing a file cannot be recorded";
  return fmt::format("not used: steps with transport '{}' cannot be recorded",
                     mesh_->along(Axis::data).transport());
}

MemoryPlan Engine::memory() const {
  MemoryPlan plan;
  instance_.add_to(plan);
  optimizer_->add_to(plan);
  if (averages_) averages_->add_to(plan);
  gradients_->add_to(plan);
  norm_->add_to(plan);
  std::size_t batches = 0, losses = 0;
  for (const auto& slot : slots_) {
    batches += slot->device_bytes();
    losses += slot->losses.bytes();
  }
  plan.add("losses", losses);
  if (batches > 0) plan.add("micro-batches", batches);
  plan.add("step control", control_.bytes());
  return plan;
}

}  // namespace choir
