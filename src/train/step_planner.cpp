#include "choir/train/step_planner.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>

#include <vector>

#include "choir/checkpoint/snapshot.hpp"
#include "choir/core/clock.hpp"
#include "choir/core/error.hpp"
#include "choir/device/cuda.hpp"
#include "choir/device/null_device.hpp"
#include "choir/model/host_batch.hpp"
#include "choir/train/generator.hpp"
#include "choir/train/speech_recogniser.hpp"
#include "choir/train/train_checkpoint.hpp"

namespace choir {
namespace {

NullDevice null_device_for(const Device* target) {
  return target ? NullDevice(*target) : NullDevice();
}

// A full block first and half a block after it: the two largest contexts generation ever feeds.
void plan_generation(ModelInstance& instance) {
  const auto block = static_cast<std::size_t>(instance.gpt().config().block_size);
  Generator(instance).generate(std::vector<std::int32_t>(block, 0), 2, {});
}

void plan_evaluation(ModelInstance& instance, const std::vector<BatchShape>& shapes) {
  const ModelConfig& model = instance.options().model;
  for (const BatchShape& shape : shapes) {
    const HostBatch host(model, shape);
    if (model.is_speech())
      SpeechRecogniser(instance).run(host.batch);
    else
      instance.loss_sum(host.batch);
  }
}

/// FLOPs and bytes of one step. Nobody looks at what is in a micro-batch, but some devices are sent
/// a copy.
class PlannedSteps {
 public:
  PlannedSteps(const ModelConfig& model, const std::vector<BatchShape>& shapes) {
    for (const BatchShape& shape : shapes)
      batches_.push_back(std::make_unique<HostBatch>(model, shape));
  }

  /// All micro-batches alike.
  WorkCounter work(Engine& engine, std::size_t shape) const {
    PhaseClock clock;
    WorkCounter& work = engine.instance().work();
    work = {};
    engine.step(
        0, [&](std::int64_t) { return batch(shape); }, 1.0, clock);
    engine.finish(clock);
    return work;
  }
  const ModelBatch& batch(std::size_t shape) const { return batches_[shape]->batch; }

 private:
  std::vector<std::unique_ptr<HostBatch>> batches_;
};

/// "activations 12 GiB, gradients 1 GiB, ...": the three largest, of one rank.
std::string largest_entries(const MemoryPlan& plan) {
  std::vector<MemoryPlan::Entry> entries = plan.entries;
  std::erase_if(entries, [](const auto& entry) { return entry.place != MemoryPlace::device; });
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, entries.size()); ++i)
    text += fmt::format("{}{} {}", i ? ", " : "", entries[i].name,
                        format_bytes(static_cast<double>(entries[i].bytes)));
  return text;
}

}  // namespace

StepPlan plan_step(const EngineOptions& options, const Layout& layout, int rank, int ranks_per_node,
                   bool generate, const Device* target, bool snapshot) {
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
    const WorkCounter work = steps.work(engine, shape);
    if (shape > 0 && work.flops <= most.flops) continue;
    most = work;
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
  // Now with the largest size of every tensor.
  if (engine.mixes_shapes())
    for (std::size_t shape = 0; shape < shapes.size(); ++shape) steps.work(engine, shape);
  for (std::size_t shape = 0; shape < shapes.size(); ++shape)
    engine.instance().loss_sum(steps.batch(shape));
  plan_evaluation(engine.instance(), options.evaluation_shapes);
  if (generate) plan_generation(engine.instance());
  plan.memory = engine.memory();
  Progress progress;
  if (snapshot) plan.snapshot_bytes = Snapshot::bytes_of(tensors_to_save(engine, progress));
  plan.arena_bytes = engine.instance().arena().peak();
  plan.arena_requests = engine.instance().arena().requests();
  return plan;
}

StepPlan plan_inference(const ModelInstance::Options& options, const Layout& layout, int rank,
                        const std::vector<BatchShape>& shapes, bool generate,
                        const Device* target) {
  NullDevice device = null_device_for(target);
  const auto mesh = Mesh::planned(layout, rank, 1);
  ModelInstance instance(options, device, *mesh, Arena::kUnbounded);
  plan_evaluation(instance, shapes);
  if (generate && !options.model.is_speech()) plan_generation(instance);
  StepPlan plan;
  plan.flops = instance.work().flops;
  plan.bytes = instance.work().bytes;
  instance.add_to(plan.memory);
  plan.arena_bytes = instance.arena().peak();
  return plan;
}

double node_memory() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

void require_memory(const StepPlan& plan, int ranks_per_node, const Device& device) {
  const cuda::Card* card = cuda::card_of(device);
  const double has = card ? kUsableOfCard * static_cast<double>(card->memory) : node_memory();
  const int ranks = card ? 1 : ranks_per_node;
  const double wants = static_cast<double>(plan.memory.total()) * ranks;
  if (wants > has)
    throw DeckError(fmt::format("out of memory: {} rank(s) on {} need {}, it has {} ({})", ranks,
                                card ? card->name : "this node", format_bytes(wants),
                                format_bytes(has), largest_entries(plan.memory)),
                    fmt::format("lower train.micro_batch_size, model.block_size or the size of the "
                                "model, or use {}",
                                card ? "more GPUs or one with more memory" : "fewer ranks a node"));
  // Where the two are not the same memory.
  const double host = static_cast<double>(plan.memory.total(MemoryPlace::host)) * ranks_per_node +
                      (card ? 0 : wants);
  if (host <= node_memory()) return;
  throw DeckError(fmt::format("out of host memory: {} rank(s) on this node need {} with "
                              "parallel.offload, it has {}",
                              ranks_per_node, format_bytes(host), format_bytes(node_memory())),
                  "set parallel.offload to \"file\", spread the state over more ranks "
                  "(parallel.zero), or use fewer ranks a node");
}

bool snapshot_fits(const StepPlan& plan, int ranks_per_node, const Device& device) {
  const MemoryPlan& memory = plan.memory;
  const std::size_t bytes = (cuda::card_of(device) ? 0 : memory.total()) +
                            memory.total(MemoryPlace::host) + plan.snapshot_bytes;
  return static_cast<double>(bytes) * ranks_per_node <= node_memory();
}

}  // namespace choir
