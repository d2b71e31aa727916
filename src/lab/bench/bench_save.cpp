#include "choir/lab/bench/bench_save.hpp"
#include "choir/train/loop/async_choice.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "choir/comm/agreement.hpp"
#include "choir/core/clock.hpp"
#include "choir/core/median.hpp"
#include "choir/lab/bench/bench_batches.hpp"
#include "choir/lab/bench/bench_step.hpp"
#include "choir/train/loop/checkpointer.hpp"
#include "choir/train/loop/weight_check.hpp"
#include "choir/train/step/run_setup.hpp"
#include "choir/train/step/train_checkpoint.hpp"

namespace choir {
namespace {

constexpr int kSteps = 5;                        // timed, after kWarmupSteps others
constexpr std::int64_t kTensorBytes = 64 << 20;  // of states without a deck
constexpr std::int64_t kWidth = sizeof(float);

/// The state of a deck in an engine, as in training.
class DeckState {
 public:
  DeckState(Deck deck, Mesh& mesh, Device& device, Logger& log)
      : deck_(std::move(deck)), mesh_(mesh), device_(device) {
    together(mesh_.world(), [&] {
      batch_ = resolve_batch(deck_, mesh_.along(Axis::data).size());
      const ModelFamily& family = deck_.family();
      if (family.vocab_size(deck_) == 0) family.vocab_size(deck_) = family.usual_vocab_size();
    });
    data_ = deck_.family().bench_batches(deck_, batch_, mesh_, log, {});
    EngineOptions options;
    StepPlan plan;
    together(mesh_.world(), [&] {
      resolve_vocabulary(deck_, data_->vocab_size(), "the training data");
      options = engine_options(deck_, batch_);
      options.shapes = data_->shapes();
      plan = plan_step(options, mesh_.layout(), mesh_.rank(), mesh_.node().size(), false, &device_);
      add_snapshot(plan.memory, plan);
      require_memory(plan, mesh_.node().size(), device_);
    });
    options.arena_requests = plan.arena_requests;
    data_->start(Sharding(mesh_, options.zero));
    engine_ = std::make_unique<Engine>(options, device_, mesh_, plan.arena_bytes);
    engine_->instance().initialise(options.seed);
  }

  /// Runs one step. Collective. `wait`, which may be empty, is called before the update.
  void step(const std::function<void()>& wait = {}) {
    if (wait) engine_->before_update([&wait](const Stream&) { wait(); });
    engine_->step(
        step_, [&](std::int64_t j) { return data_->micro_batch(step_, j); }, data_->targets(step_),
        clock_);
    engine_->finish(clock_);
    ++step_;
  }
  /// Returns the median time of the slowest rank. Collective.
  double measure_step() {
    std::vector<double> seconds;
    for (int i = 0; i < kWarmupSteps + kSteps; ++i) {
      mesh_.world().barrier();
      const double start = now_seconds();
      step();
      double slowest = now_seconds() - start;
      mesh_.world().all_reduce(&slowest, 1, DType::f64, ReduceOp::max);
      if (i >= kWarmupSteps) seconds.push_back(slowest);
    }
    return median_of(seconds);
  }

  CheckpointBenchCase bench_case() {
    return {.saved = tensors_to_save(*engine_, progress_),
            .held = tensors_to_load(*engine_, progress_),
            .device = &device_,
            // The same check as in Checkpointer::save().
            .check =
                [this] {
                  if (reads_weights_aside(*engine_)) return weight_check_of_save(*engine_);
                  check_weights(*engine_, step_);
                  return SaveCheck{};
                },
            .meanwhile = [this](const std::function<void()>& wait) { step(wait); },
            .folder = ""};
  }

 private:
  Deck deck_;
  Mesh& mesh_;
  Device& device_;
  BatchSizes batch_;
  std::unique_ptr<BenchBatches> data_;
  std::unique_ptr<Engine> engine_;
  Progress progress_;
  PhaseClock clock_;
  std::int64_t step_ = 0;
};

/// Tensors of one size, each divided into one piece per rank.
std::vector<StoredTensor> cut_evenly(std::int64_t bytes, const Communicator& world,
                                     const Buffer& memory, Device& device) {
  std::vector<StoredTensor> tensors;
  auto* at = static_cast<std::byte*>(memory.data());
  for (std::int64_t left = bytes / kWidth, n = 0; left > 0; left -= n) {
    n = std::min(left, kTensorBytes / kWidth);
    const std::int64_t first = n * world.rank() / world.size();
    const std::int64_t count = n * (world.rank() + 1) / world.size() - first;
    tensors.push_back({.name = fmt::format("state/{:06}", tensors.size()),
                       .dtype = DType::f32,
                       .shape = {n},
                       .pieces = {{first, count, at}},
                       .device = &device});
    at += count * kWidth;
  }
  return tensors;
}

void require_host_memory(std::int64_t bytes, Mesh& mesh) {
  // The state and its copy.
  const double wants = 2.0 * static_cast<double>(bytes) / mesh.world().size() * mesh.node().size();
  together(mesh.world(), [&] {
    if (wants > node_memory())
      throw DeckError(
          fmt::format("--bytes {}: {} rank(s) on this node need {} of memory; the node has {}",
                      bytes, mesh.node().size(), format_bytes(wants), format_bytes(node_memory())),
          "use fewer bytes or more nodes");
  });
}

SaveBench measured(Mesh& mesh, CheckpointBenchCase request, const SaveBenchOptions& options,
                   double step_seconds) {
  request.folder = options.folder;
  request.rounds = options.rounds;
  request.transfer_bytes = options.transfer_bytes;
  return {bench_checkpoint(mesh.world(), request), step_seconds};
}

}  // namespace

SaveBench bench_save(Deck deck, Mesh& mesh, Device& device, Logger& log,
                     const SaveBenchOptions& options) {
  DeckState state(std::move(deck), mesh, device, log);
  const double step = options.step_seconds > 0 ? options.step_seconds : state.measure_step();
  return measured(mesh, state.bench_case(), options, step);
}

SaveBench bench_save(std::int64_t bytes, Mesh& mesh, Device& device,
                     const SaveBenchOptions& options) {
  require_host_memory(bytes, mesh);
  const Communicator& world = mesh.world();
  const std::int64_t tensors = (bytes + kTensorBytes - 1) / kTensorBytes;
  Buffer memory;
  together(mesh.world(), [&] {
    memory = Buffer(device, static_cast<std::size_t>(bytes / world.size() + tensors * kWidth));
  });
  const std::vector<StoredTensor> pieces = cut_evenly(bytes, world, memory, device);
  return measured(mesh,
                  {.saved = pieces,
                   .held = pieces,
                   .device = &device,
                   .check = {},
                   .meanwhile = {},
                   .folder = ""},
                  options, options.step_seconds);
}

}  // namespace choir
