// Tests of steps that are queued and read later, on a device whose memory the host cannot see: the
// numbers are the same and in order, with any number of steps in flight.
#include <gtest/gtest.h>

#include "src/core/quantities.hpp"
#include "src/device/null_device.hpp"
#include "src/models/gpt/generator.hpp"
#include "src/train/step/train_checkpoint.hpp"
#include "test/support/measured.hpp"
#include "test/support/separate_device.hpp"
#include "test/unit/store/fixtures.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

using test::SeparateDevice;

TEST(SeparateDevice, HostReadsEndTheProgram) {
  SeparateDevice device;
  const Buffer memory(device, 64);
  device.zero(memory.data(), 64);
  // A read that succeeds finds 0, which would be a good exit code. (Sanitizers handle the signal.)
  EXPECT_DEATH(std::exit(*static_cast<volatile char*>(memory.data())), "");
  device.open();  // as an op does
  EXPECT_EQ(*static_cast<char*>(memory.data()), 0);
}

/// Results of `steps` steps with up to `lag` in flight; step 2 has a loss that is not a number.
struct Outcome {
  std::vector<double> numbers, state;
};
Outcome outcome(EngineOptions options, std::unique_ptr<Device> device, int lag, int steps = 7) {
  options.lag = lag;
  test::SingleRank single;
  test::EngineRun run(options, *single.mesh, std::move(device));
  Engine& engine = run.engine();
  EXPECT_EQ(engine.lag(), lag);
  Outcome result;
  const auto take = [&] {
    const StepResult r = engine.finish(run.clock());
    for (const double x :
         {r.loss, r.grad_norm, r.learning_rate, r.loss_scale, static_cast<double>(r.updated),
          static_cast<double>(r.overflow), static_cast<double>(engine.update_state().updates)})
      result.numbers.push_back(std::isnan(x) ? -1 : x);
  };
  for (int step = 0; step < steps; ++step) {
    run.queue(step == 2 ? NAN : run.tokens_of_step());
    while (engine.in_flight() > lag) take();
  }
  EXPECT_EQ(engine.in_flight(), lag);
  while (engine.in_flight() > 0) take();
  result.state = run.state();
  return result;
}

TEST(QueuedStep, LagChangesNothing) {
  for (const char* precision : {"fp64", "fp32", "bf16-mixed", "bf16-true", "fp16-mixed"})
    for (const std::int64_t micro_batches : {1, 3}) {
      const EngineOptions options =
          test::engine_options(test::with_dropout(test::tiny_gpt()), precision, micro_batches);
      const Outcome at_once = outcome(options, std::make_unique<CpuDevice>(), 0);
      for (const int lag : {1, 2, 3}) {
        const Outcome later = outcome(options, std::make_unique<CpuDevice>(), lag);
        EXPECT_TRUE(test::same_bits(at_once.numbers, later.numbers)) << precision << " " << lag;
        EXPECT_TRUE(test::same_bits(at_once.state, later.state)) << precision << " " << lag;
      }
    }
}

TEST(QueuedStep, SeparateMemoryChangesNothing) {
  for (const char* precision : {"fp64", "bf16-mixed", "bf16-true", "fp16-mixed"})
    for (const std::int64_t micro_batches : {1, 3}) {
      const EngineOptions options =
          test::engine_options(test::with_dropout(test::tiny_gpt()), precision, micro_batches);
      const Outcome visible = outcome(options, std::make_unique<CpuDevice>(), 0);
      for (const int lag : {0, 1}) {
        const Outcome separate = outcome(options, std::make_unique<SeparateDevice>(), lag);
        EXPECT_TRUE(test::same_bits(visible.numbers, separate.numbers)) << precision << lag;
        EXPECT_TRUE(test::same_bits(visible.state, separate.state)) << precision << lag;
      }
    }
}

TEST(QueuedStep, OnlySoManyInFlight) {
  EngineOptions options = test::engine_options(test::tiny_gpt(), "fp32", 1);
  options.lag = 1;
  test::SingleRank single;
  test::EngineRun run(options, *single.mesh);
  EXPECT_THROW(run.engine().finish(run.clock()), Error);
  run.queue(run.tokens_of_step());
  run.queue(run.tokens_of_step());
  EXPECT_THROW(run.queue(run.tokens_of_step()), Error);
  EXPECT_THROW(run.engine().resume({}), Error);
}

// The step after a bad one has overwritten its gradients; their names are reported nevertheless.
TEST(QueuedStep, TensorsOfABadStepAreNamedLater) {
  EngineOptions options = test::engine_options(test::tiny_gpt(), "fp32", 1);
  options.lag = 1;
  test::SingleRank single;
  test::EngineRun run(options, *single.mesh);
  run.queue(NAN);
  run.queue(run.tokens_of_step());
  EXPECT_FALSE(run.engine().finish(run.clock()).updated);
  EXPECT_EQ(run.engine().non_finite_gradients().size(),
            run.engine().instance().parameters().parameters().size());
  EXPECT_TRUE(run.engine().finish(run.clock()).updated);
  EXPECT_TRUE(run.engine().non_finite_gradients().empty());
}

TEST(QueuedStep, PlansForSeparateMemory) {
  const EngineOptions options =
      test::engine_options(test::with_dropout(test::tiny_gpt()), "fp32", 3);
  SeparateDevice device;
  test::SingleRank single;
  const StepPlan plan = plan_step(options, Layout(), 0, 1, true, &device);
  const StepPlan visible = plan_step(options, Layout(), 0, 1, true);
  test::EngineRun run(
      options, *single.mesh, std::make_unique<SeparateDevice>(),
      plan.arena_bytes - plan_step(options, Layout(), 0, 1, false, &device).arena_bytes);
  run.losses(2);
  ModelInstance& instance = run.engine().instance();
  instance.loss_sum(run.batch(77));
  Generator(instance).generate(std::vector<std::int32_t>(8, 1), 12, {.seed = 1});
  const MemoryPlan real = run.engine().memory();
  ASSERT_EQ(plan.memory.entries.size(), real.entries.size());
  for (std::size_t i = 0; i < real.entries.size(); ++i) {
    EXPECT_EQ(plan.memory.entries[i].name, real.entries[i].name);
    EXPECT_EQ(plan.memory.entries[i].bytes, real.entries[i].bytes) << real.entries[i].name;
  }
  EXPECT_EQ(plan.memory.entries.size(), visible.memory.entries.size() + 1) << "micro-batches";
}

TEST(QueuedStep, SetUpEvaluationAndTextInSeparateMemory) {
  for (const char* precision : {"fp64", "fp32", "bf16-mixed", "bf16-true", "fp16-mixed"}) {
    const EngineOptions options = test::engine_options(test::tiny_llama(), precision, 1);
    constexpr std::size_t kMoreArena = 1 << 20;
    test::SingleRank one, two;
    test::EngineRun visible(options, *one.mesh, kMoreArena),
        separate(options, *two.mesh, std::make_unique<SeparateDevice>(), kMoreArena);
    ModelInstance &a = visible.engine().instance(), &b = separate.engine().instance();
    EXPECT_EQ(a.storage().digest(), b.storage().digest()) << precision;
    EXPECT_NE(a.storage().digest(), 0u);
    EXPECT_EQ(a.loss_sum(visible.batch(5)), b.loss_sum(separate.batch(5))) << precision;
    const TokenChoice choice{.temperature = 1, .seed = 3};
    EXPECT_EQ(Generator(a).generate({1, 2, 3}, 20, choice),
              Generator(b).generate({1, 2, 3}, 20, choice))
        << precision;
  }
}

TEST(QueuedStep, CheckpointsPassBetweenMemories) {
  const test::TemporaryDirectory folder;
  for (const char* precision : {"fp64", "bf16-true", "fp16-mixed"}) {
    const EngineOptions options = test::engine_options(test::tiny_gpt(), precision, 2);
    test::SingleRank one, two;
    test::EngineRun separate(options, *one.mesh, std::make_unique<SeparateDevice>()),
        visible(options, *two.mesh);
    for (int i = 0; i < 3; ++i) separate.step();
    CheckpointStore store(folder.path() + "/" + precision, one.mesh->world());
    Progress progress{.step = 3};
    ASSERT_TRUE(
        store.save({.step = 3, .json = "{}"}, tensors_to_save(separate.engine(), progress)).saved);
    const auto found = store.find_newest_valid();
    ASSERT_TRUE(found);
    EXPECT_FALSE(test::same_bits(separate.state(), visible.state()));
    store.load(*found, tensors_to_load(visible.engine(), progress));
    EXPECT_TRUE(test::same_bits(separate.state(), visible.state())) << precision;
    separate.step();
    store.load(*found, tensors_to_load(separate.engine(), progress));
    EXPECT_TRUE(test::same_bits(separate.state(), visible.state())) << precision << ", and back";
  }
}

// If the device measures the time, the phases of a step reach from the end of the step before to
// its own end: over several steps they add up to the time that passed.
TEST(QueuedStep, PhasesOfTheDeviceAddUp) {
  test::SingleRank single;
  test::EngineRun run(test::engine_options(test::tiny_gpt(), "fp32", 3), *single.mesh,
                      std::make_unique<SeparateDevice>());
  Engine& engine = run.engine();
  PhaseClock& clock = run.clock();
  const double start = now_seconds();
  double last_queued = start;
  PhaseTotals totals;
  for (int i = 0; i < 6; ++i) {
    clock.begin();
    run.queue(run.tokens_of_step());
    last_queued = now_seconds();
    if (engine.in_flight() <= engine.lag()) continue;
    engine.finish(clock);
    clock.end();
    totals.add(clock);
  }
  clock.begin();
  engine.finish(clock);
  clock.end();
  totals.add(clock);
  // The work is complete when it is queued: the last event is just before.
  const double wall = last_queued - start;
  EXPECT_EQ(totals.steps, 6);
  EXPECT_GT(totals.of(Phase::forward), 0);
  EXPECT_GT(totals.of(Phase::backward), 0);
  EXPECT_GT(totals.of(Phase::optimizer), 0);
  EXPECT_GT(totals.of(Phase::data), 0);
  EXPECT_LE(totals.total(), wall);
  // The difference is the time of the host before the first mark and after the last event.
  test::print_measured("phases of the device", totals.total(), "s", "above", 0.9 * wall);
  EXPECT_GE(totals.total(), 0.9 * wall);
}

// Work on this device is recorded, not executed: its calls are counted.
class RecordingDevice final : public NullDevice {
 public:
  RecordingDevice() : NullDevice(test::SeparateDevice()) {}
  bool records_graphs() const override { return true; }
  void begin_capture(NativeStream) override { ++begun; }
  NativeGraph end_capture(NativeStream) override {
    ++ended;
    return reinterpret_cast<NativeGraph>(static_cast<std::uintptr_t>(ended));
  }
  void launch(NativeGraph graph, NativeStream) override {
    launched.push_back(reinterpret_cast<std::uintptr_t>(graph));
  }
  void destroy(NativeGraph) noexcept override { ++destroyed; }
  int begun = 0, ended = 0, destroyed = 0;
  std::vector<std::uintptr_t> launched;
};

TEST(StepGraph, RecordedOncePerSlotThenReplayed) {
  RecordingDevice device;
  test::SingleRank single;
  EngineOptions options = test::engine_options(test::tiny_gpt(), "fp32", 2);
  options.lag = 1;
  {
    Engine engine(options, device, *single.mesh, Arena::kUnbounded);
    EXPECT_NE(engine.graph_use().find("replayed"), std::string::npos);
    std::vector<std::int32_t> ids(16);
    const TensorView view{ids.data(), DType::i32, {16}};
    PhaseClock clock;
    std::int64_t batches = 0;
    const auto steps = [&](int n) {
      for (int i = 0; i < n; ++i) {
        engine.step(
            0,
            [&](std::int64_t) {
              ++batches;
              return token_batch(2, view, view);
            },
            16, clock);
        engine.finish(clock);
      }
    };
    steps(2);
    EXPECT_EQ(device.begun, 0) << "two steps to warm up";
    const double flops = engine.instance().work().flops / 2;
    steps(2);
    EXPECT_EQ(device.ended, 2) << "one for each slot";
    steps(5);
    EXPECT_EQ(device.begun, 2);
    EXPECT_EQ(device.launched, (std::vector<std::uintptr_t>{1, 2, 1, 2, 1, 2, 1}));
    EXPECT_EQ(engine.instance().work().flops, 4 * flops) << "five steps were only replayed";
    EXPECT_EQ(batches, 18) << "but every one had its data";
    const Tensor held = engine.instance().pass().scratch(64, "held");  // other addresses
    steps(2);
    EXPECT_EQ(device.ended, 4);
    EXPECT_EQ(device.destroyed, 2);
    steps(1);
    EXPECT_EQ(device.ended, 4);
  }
  EXPECT_EQ(device.destroyed, 4);
  device.begun = 0;
  options.cuda_graph = false;
  Engine without(options, device, *single.mesh, Arena::kUnbounded);
  EXPECT_EQ(without.graph_use(), "off");
  CpuDevice cpu;
  EXPECT_THROW(cpu.begin_capture(nullptr), Error);
}

}  // namespace
}  // namespace choir
