#include "src/train/step/step_planner.hpp"

#include <array>
#include <memory>
#include <set>
#include <vector>

#include "src/comm/null_communicator.hpp"
#include "src/device/null_device.hpp"
#include "src/run/null_instance.hpp"
#include "src/store/snapshot.hpp"
#include "src/train/step/engine.hpp"
#include "src/train/step/phase_clock.hpp"
#include "src/train/step/train_checkpoint.hpp"

namespace choir {
namespace {

/// FLOPs and bytes of one step. The contents of micro-batches are not read, but some devices copy
/// them.
class PlannedSteps {
 public:
  PlannedSteps(const ModelConfig& model, const std::vector<BatchShape>& shapes) {
    for (const BatchShape& shape : shapes)
      batches_.push_back(std::make_unique<HostBatch>(model, shape));
  }

  /// The work of a step whose micro-batches all have this shape, also by phase if `phases` is not
  /// null.
  WorkCounter work(Engine& engine, std::size_t shape,
                   std::vector<PhaseWork>* phases = nullptr) const {
    PhaseClock clock;
    WorkCounter& work = engine.instance().work();
    work = {};
    std::array<WorkCounter, kPhases> by_phase{};
    WorkCounter before;
    clock.listen([&](Phase ended, double, double, Phase) {
      by_phase[static_cast<std::size_t>(ended)].add(work.flops - before.flops,
                                                    work.bytes - before.bytes);
      before = work;
    });
    engine.step(
        0, [&](std::int64_t) { return batch(shape); },
        ByTerm(engine.instance().loss_terms().size(), 1), clock);
    engine.finish(clock);
    if (phases == nullptr) return work;
    phases->clear();
    for (const Phase phase : {Phase::forward, Phase::backward, Phase::optimizer})
      if (const WorkCounter& of = by_phase[static_cast<std::size_t>(phase)]; of.bytes > 0)
        phases->push_back({name_of(phase), of.flops, of.bytes});
    return work;
  }
  const ModelBatch& batch(std::size_t shape) const { return batches_[shape]->batch; }

 private:
  std::vector<std::unique_ptr<HostBatch>> batches_;
};

/// Number of nodes with ranks of a communicator: an axis, or the replicas that share a copy of the
/// state or a slice of it.
int nodes_of(const Mesh& mesh, const Sharding& sharding, const StepCommunicator& of) {
  const Communicator* const comm = of.communicator;
  std::set<int> nodes;
  if (comm != &sharding.data() && comm != &sharding.group() && comm != sharding.replicas()) {
    for (const int rank : mesh.layout().group(mesh.rank(), {of.axis}))
      nodes.insert(mesh.node_of(rank));
    return static_cast<int>(nodes.size());
  }
  const std::vector<int> all = mesh.layout().replicas(mesh.rank());
  const int me = sharding.data().rank(), size = comm->size(), slices = sharding.group().size();
  for (int r = 0; r < static_cast<int>(all.size()); ++r)
    if (comm == sharding.replicas() ? r % slices == me % slices : r / size == me / size)
      nodes.insert(mesh.node_of(all[static_cast<std::size_t>(r)]));
  return static_cast<int>(nodes.size());
}

/// Records the work of the engine in a step, within a scope.
class Recording {
 public:
  Recording(NullDevice& device, Engine& engine, Mesh& mesh, WorkRecord* to)
      : journal_(device.plans().get<WorkJournal>()),
        mesh_(mesh),
        sharding_(engine.instance().storage().sharding()),
        to_(to) {
    if (to_ == nullptr) return;
    journal_.start(engine.instance().work());
    for (const StepCommunicator& c : step_communicators(mesh_, sharding_))
      journal_calls(*c.communicator, &journal_,
                    journal_.add_group({.axis = std::string(short_name(c.axis)),
                                        .ranks = c.communicator->size(),
                                        .nodes = nodes_of(mesh_, sharding_, c)}));
  }
  ~Recording() {
    if (to_ == nullptr) return;
    *to_ = journal_.stop();
    for (const StepCommunicator& c : step_communicators(mesh_, sharding_))
      journal_calls(*c.communicator, nullptr, 0);
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  WorkJournal& journal_;
  Mesh& mesh_;
  const Sharding& sharding_;
  WorkRecord* to_;
};

}  // namespace

StepPlan plan_step(const EngineOptions& options, const Layout& layout, int rank, int ranks_per_node,
                   bool generate, const Device* target, bool snapshot, WorkRecord* record) {
  NullDevice device = null_device_for(target);
  const auto mesh = Mesh::planned(layout, rank, ranks_per_node);
  Engine engine(options, device, *mesh, Arena::kUnbounded);
  const std::vector<BatchShape> shapes = shapes_of(options);
  const PlannedSteps steps(options.model, shapes);
  StepPlan plan;
  const Sharding& sharding = engine.instance().storage().sharding();
  WorkCounter most;
  std::size_t largest = 0;
  for (std::size_t shape = 0; shape < shapes.size(); ++shape) {
    reset_traffic(*mesh, sharding);
    WorkRecord done;
    WorkCounter work;
    std::vector<PhaseWork> phases;
    {
      const Recording recording(device, engine, *mesh, record ? &done : nullptr);
      work = steps.work(engine, shape, &phases);
    }
    if (shape > 0 && work.flops <= most.flops) continue;
    if (record != nullptr) *record = std::move(done);
    most = work;
    plan.phases = std::move(phases);
    largest = shape;
    plan.traffic = traffic_of(*mesh, sharding);
  }
  plan.flops = most.flops;
  plan.bytes = most.bytes;
  if (options.model.recompute() != Recompute::none) {
    EngineOptions once = options;
    once.model.set_recompute(Recompute::none);
    Engine keeps_all(once, device, *mesh, Arena::kUnbounded);
    plan.repeated_flops = most.flops - steps.work(keeps_all, largest).flops;
  }
  // Runs again with the largest size of every tensor.
  if (engine.mixes_shapes())
    for (std::size_t shape = 0; shape < shapes.size(); ++shape) steps.work(engine, shape);
  for (std::size_t shape = 0; shape < shapes.size(); ++shape)
    engine.instance().loss_sums(steps.batch(shape));
  evaluate_shapes(engine.instance(), options.evaluation_shapes);
  if (generate) options.model.family().sample_once(engine.instance());
  plan.products = device.plans().get<ops::ProductsAsked>().all;
  plan.memory = engine.memory();
  for (const MemoryPlan::Entry& scorer : options.scorers.entries)
    plan.memory.add(scorer.name, scorer.bytes, scorer.shared, scorer.place);
  Progress progress;
  if (snapshot) plan.snapshot_bytes = Snapshot::bytes_of(tensors_to_save(engine, progress));
  plan.arena_bytes = engine.instance().arena().peak();
  plan.arena_requests = engine.instance().arena().requests();
  return plan;
}

}  // namespace choir
