// Tests of offloaded state: the bits are those of state that stays on the device, in every
// precision and ZeRO stage; the planned memory is the memory that is held, on the device and on the
// host.
#include <gtest/gtest.h>

#include "src/device/null_device.hpp"
#include "src/run/run_setup.hpp"
#include "src/train/loop/startup_report.hpp"
#include "src/train/step/engine_options.hpp"
#include "src/train/step/train_checkpoint.hpp"
#include "test/support/count_allocations.hpp"
#include "test/support/offload_case.hpp"
#include "test/support/separate_device.hpp"
#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

using test::SeparateDevice;

constexpr std::array kPrecisions{"fp64", "fp32", "bf16-mixed", "bf16-true", "fp16-mixed"};

std::unique_ptr<Device> cpu() {
  return std::make_unique<CpuDevice>();
}
std::unique_ptr<Device> separate() {
  return std::make_unique<SeparateDevice>();
}

test::OffloadRun trained(const EngineOptions& options, std::unique_ptr<Device> device) {
  test::SingleRank single;
  return test::run_offloaded(options, *single.mesh, std::move(device));
}

TEST(Offload, ChangesNoBit) {
  for (const char* precision : kPrecisions)
    for (const int stage : {0, 2, 3}) {
      EngineOptions options =
          test::engine_options(stage == 2 ? test::tiny_llama() : test::tiny_gpt(), precision, 2);
      options.zero.stage = stage;
      const test::OffloadRun whole = trained(options, cpu());
      const std::string what = fmt::format("{} stage {}", precision, stage);
      options.offload = test::offload_to_file();
      EXPECT_TRUE(same_bits(whole, trained(options, cpu()))) << what << " file";
      EXPECT_TRUE(same_bits(whole, trained(options, separate()))) << what << " file, separate";
      options.offload = test::offload_to_host();
      EXPECT_TRUE(same_bits(whole, trained(options, separate()))) << what << " optimizer";
      options.offload = test::offload_to_host(true);
      if (stage == 3) {
        EXPECT_TRUE(same_bits(whole, trained(options, separate()))) << what << " all";
      }
    }
}

// Accumulation over several micro-batches, in a plain sum and in the levels of the tree, tied
// weights with one sum (and in reproducible mode with two), and models with and without biases.
TEST(Offload, GradientsChangeNoBit) {
  for (const char* precision : {"fp32", "bf16-mixed"})
    for (const int stage : {2, 3})
      for (const auto& [micro_batches, reproducible] :
           {std::pair{1, false}, {3, false}, {8, true}}) {
        EngineOptions options =
            test::engine_options(stage == 2 ? test::tiny_llama() : test::tiny_gpt(), precision,
                                 micro_batches, reproducible);
        options.zero.stage = stage;
        const test::OffloadRun whole = trained(options, cpu());
        const std::string what = fmt::format("{} stage {}, {} micro-batches{}", precision, stage,
                                             micro_batches, reproducible ? " in a tree" : "");
        options.offload = test::with_gradients(test::offload_to_file());
        EXPECT_TRUE(same_bits(whole, trained(options, cpu()))) << what << " file";
        EXPECT_TRUE(same_bits(whole, trained(options, separate()))) << what << " file, separate";
        options.offload = test::with_gradients(test::offload_to_host(stage == 3));
        EXPECT_TRUE(same_bits(whole, trained(options, separate()))) << what << " host";
      }
}

// A tensor longer than the reads of the norm, with a part of a chunk at its end.
TEST(Offload, GradientsOfLongTensorsChangeNoBit) {
  GptConfig model = test::tiny_gpt();
  model.vocab_size = 1601;
  for (const bool reproducible : {false, true}) {
    EngineOptions options = test::engine_options(model, "fp32", 2, reproducible);
    options.zero.stage = 2;
    const test::OffloadRun whole = trained(options, cpu());
    options.offload = test::with_gradients(test::offload_to_host());
    EXPECT_TRUE(same_bits(whole, trained(options, separate()))) << reproducible;
  }
}

TEST(Offload, NegativeControlGradientsThatAreNotKept) {
  EngineOptions options = test::engine_options(test::tiny_gpt(), "fp32", 2);
  options.zero.stage = 2;
  options.offload = test::with_gradients(test::offload_to_host());
  test::SingleRank single;
  test::EngineRun run(options, *single.mesh, separate());
  run.losses(1);
  ParameterStorage& storage = run.engine().instance().storage();
  ASSERT_TRUE(storage.gradients_apart());
  for (const Bucket& bucket : storage.parameters().buckets()) {
    const TensorView slice = storage.gradients(bucket);
    const auto* first = slice.as<float>();
    EXPECT_TRUE(std::any_of(first, first + slice.count(), [](float g) { return g != 0; }))
        << bucket.name << ": the test sees the gradients in host memory";
  }
}

// Frozen weights without masters, while the masters of others are on the device or outside of it.
TEST(Offload, ChangesNoBitOfFrozenWeights) {
  for (const int stage : {0, 2, 3}) {
    EngineOptions options = test::engine_options(test::tiny_llama(), "bf16-mixed", 2);
    options.freezing = {{"embedding.*", "*.qkv.weight", "*.output.weight"}, {}};
    options.precision = with_narrow_frozen(options.precision);
    options.zero.stage = stage;
    const test::OffloadRun whole = trained(options, cpu());
    options.offload = test::offload_to_file();
    EXPECT_TRUE(same_bits(whole, trained(options, separate()))) << stage << " file, separate";
    options.offload = test::offload_to_host();
    EXPECT_TRUE(same_bits(whole, trained(options, separate()))) << stage << " optimizer";
    options.offload = test::offload_to_host(true);
    if (stage == 3) {
      EXPECT_TRUE(same_bits(whole, trained(options, separate()))) << stage << " all";
    }
    options.offload = test::with_gradients(test::offload_to_host());
    if (stage > 0) {
      EXPECT_TRUE(same_bits(whole, trained(options, separate()))) << stage << " gradients";
    }
  }
}

TEST(Offload, NegativeControlStateThatIsNotKept) {
  EngineOptions options = test::engine_options(test::tiny_gpt(), "fp32", 1);
  const test::OffloadRun whole = trained(options, cpu());
  options.offload = test::offload_to_file();
  test::SingleRank single;
  test::EngineRun run(options, *single.mesh);
  run.losses(2);
  const OffloadMemory& memory = run.engine().instance().storage().offloaded()->memory();
  memory.data()[100] ^= std::byte{1};
  test::EngineRun other(options, *single.mesh);
  other.losses(2);
  EXPECT_FALSE(test::same_bits(run.state(), other.state())) << "the test sees the file";
}

MemoryPlan planned(const EngineOptions& options, const Device* target) {
  return plan_step(options, Layout(), 0, 1, false, target).memory;
}

TEST(Offload, PlanIsWhatIsHeldAndTheDeviceHoldsLess) {
  const SeparateDevice target;
  for (const char* precision : kPrecisions)
    for (const int stage : {0, 1, 3})
      for (const OffloadOptions& offload :
           {test::offload_to_file(), test::offload_to_host(), test::offload_to_host(true)}) {
        if (offload.parameters && stage != 3) continue;
        EngineOptions options = test::engine_options(test::tiny_gpt(), precision, 2);
        options.zero.stage = stage;
        const MemoryPlan without = planned(options, &target);
        options.offload = offload;
        test::SingleRank single;
        test::EngineRun run(options, *single.mesh, separate());
        run.losses(2);
        const MemoryPlan real = run.engine().memory(), plan = run.plan().memory;
        ASSERT_EQ(plan.to_string(), real.to_string()) << precision << stage;

        const Precision p = precision_of(precision);
        const auto n = static_cast<std::size_t>(run.engine().instance().storage().slices_size());
        const auto bytes = [](std::size_t count, DType type) { return count * size_of(type); };
        const bool masters = p.has_copy() || offload.parameters;
        const std::size_t element = 2 * size_of(p.gradient) + (masters ? size_of(p.master) : 0) +
                                    (offload.parameters && p.has_copy() ? size_of(p.compute) : 0);
        EXPECT_EQ(real.total(offload.place), n * element);
        EXPECT_EQ(run.engine().instance().storage().offloaded()->memory().bytes(), n * element);
        std::size_t held = without.total() - bytes(2 * n, p.gradient);
        if (masters) held -= bytes(n, p.master);
        // Stage 3 gathers from a compute copy if the masters do not exist.
        if (stage == 3 && p.has_copy() && !offload.parameters) held += bytes(n, p.compute);
        const std::size_t windows =
            bytes(StateStream::kWindows * test::kShortChunk, DType::u8) * element;
        EXPECT_EQ(real.total() - held, windows) << precision << " stage " << stage;
        if (offload.place == MemoryPlace::file) {
          EXPECT_EQ(real.total(MemoryPlace::host), windows) << precision << " stage " << stage;
        }
      }
}

std::size_t bytes_in(const MemoryPlan& plan, const std::string& name, MemoryPlace place) {
  std::size_t bytes = 0;
  for (const MemoryPlan::Entry& entry : plan.entries)
    if (entry.name == name && entry.place == place) bytes += entry.bytes;
  return bytes;
}

TEST(Offload, GradientsInThePlanAreThoseThatAreHeld) {
  const SeparateDevice target;
  constexpr std::int64_t kLevels = 2;  // the carries of four micro-batches
  for (const int stage : {2, 3})
    for (const bool reproducible : {false, true})
      for (const OffloadOptions& offload : {test::offload_to_file(), test::offload_to_host()}) {
        EngineOptions options =
            test::engine_options(test::tiny_gpt(), "bf16-mixed", 4, reproducible);
        options.zero.stage = stage;
        options.offload = offload;
        const MemoryPlan without = planned(options, &target);
        options.offload = test::with_gradients(offload);
        test::SingleRank single;
        test::EngineRun run(options, *single.mesh, separate());
        run.losses(2);
        const MemoryPlan real = run.engine().memory();
        ASSERT_EQ(run.plan().memory.to_string(), real.to_string()) << stage;
        const ParameterStorage& storage = run.engine().instance().storage();
        const std::size_t slices =
            static_cast<std::size_t>(storage.trained_slices_size()) * sizeof(float);
        const std::size_t moved = slices * (1 + (reproducible ? kLevels : 0));
        EXPECT_EQ(bytes_in(real, "gradients, slice", MemoryPlace::host) +
                      bytes_in(real, "gradients, reproducible tree", MemoryPlace::host),
                  moved);
        // Windows of the sums, of the norm and of the update take their place.
        const std::size_t windows = bytes_in(real, "offload windows", MemoryPlace::device) -
                                    bytes_in(without, "offload windows", MemoryPlace::device);
        EXPECT_EQ(without.total() + windows - real.total(), moved) << stage << reproducible;
        EXPECT_NE(offload_report(run.engine()).find("; gradients ("), std::string::npos);
      }
  // On the CPU they are in the file.
  EngineOptions options = test::engine_options(test::tiny_gpt(), "fp32", 2);
  options.zero.stage = 2;
  options.offload = test::offload_to_file();
  const MemoryPlan without = planned(options, nullptr);
  options.offload = test::with_gradients(options.offload);
  const MemoryPlan with = planned(options, nullptr);
  const std::size_t moved = without.total() - with.total();
  EXPECT_GT(moved, 0u);
  EXPECT_EQ(moved, without.bytes_of("gradients, slice"));
  EXPECT_EQ(with.total(MemoryPlace::file) - without.total(MemoryPlace::file), moved);
}

TEST(Offload, TakesNothingToPlan) {
  GptConfig large = test::tiny_gpt();
  large.n_embd = 8192, large.ffn_width = 32768, large.n_layer = 80, large.n_head = 64;
  large.n_kv_head = 64;
  EngineOptions options = test::engine_options(large, "bf16-mixed", 1);
  options.offload = {.place = MemoryPlace::host};
  const SeparateDevice target;
  const MemoryPlan plan = planned(options, &target);
  EXPECT_GT(plan.total(MemoryPlace::host), std::size_t{700} << 30);
  EXPECT_NE(plan.to_string().find("host memory per rank"), std::string::npos);
  options.offload = {.place = MemoryPlace::file, .directory = "/proc/no/such/place"};
  EXPECT_EQ(planned(options, &target).total(MemoryPlace::file), plan.total(MemoryPlace::host));
  EXPECT_EQ(planned(options, &target).bytes_of("optimizer moments"),
            plan.bytes_of("optimizer moments"));
}

TEST(Offload, IsIgnoredWhereDeviceMemoryIsHostMemory) {
  EngineOptions options = test::engine_options(test::tiny_gpt(), "bf16-mixed", 1);
  const MemoryPlan without = planned(options, nullptr);
  options.offload = test::offload_to_host();
  EXPECT_EQ(planned(options, nullptr).to_string(), without.to_string());
  test::SingleRank single;
  test::EngineRun run(options, *single.mesh);
  EXPECT_NE(offload_report(run.engine()).find("ignored on cpu"), std::string::npos);
  options.offload = test::offload_to_file();
  test::EngineRun file(options, *single.mesh);
  const std::string report = offload_report(file.engine());
  EXPECT_NE(report.find("masters and moments of each rank"), std::string::npos) << report;
  EXPECT_NE(report.find("a file in " + options.offload.directory), std::string::npos) << report;
}

// A run with any kind of offload reads the checkpoint of a run with any other, and continues to the
// bit.
TEST(Offload, CheckpointsKnowNoPlace) {
  const test::TemporaryDirectory folder;
  std::int64_t saved = 0;
  for (const char* precision : {"fp32", "bf16-mixed"}) {
    EngineOptions options = test::engine_options(test::tiny_gpt(), precision, 2);
    options.zero.stage = 3;
    const std::array places{OffloadOptions{}, test::offload_to_file(), test::offload_to_host(),
                            test::offload_to_host(true)};
    for (std::size_t from = 0; from < places.size(); ++from) {
      options.offload = places[from];
      test::SingleRank one;
      test::EngineRun run(options, *one.mesh, separate());
      run.losses(3);
      CheckpointStore store(folder.path() + "/checkpoints", one.mesh->world());
      Progress progress{.step = 3, .updates = 3};
      ASSERT_TRUE(
          store.save({.step = ++saved, .json = "{}"}, tensors_to_save(run.engine(), progress))
              .saved);
      run.losses(2);
      for (const OffloadOptions& to : places) {
        options.offload = to;
        test::SingleRank two;
        test::EngineRun next(options, *two.mesh, separate());
        next.losses(1);  // windows and slots have other contents
        Progress restored;
        store.load(*store.find_newest_valid(), tensors_to_load(next.engine(), restored));
        next.engine().instance().publish();
        next.engine().resume(restored.update_state());
        next.start_at(3);
        next.losses(2);
        EXPECT_TRUE(test::same_bits(run.state(), next.state())) << precision << " from " << from;
        EXPECT_EQ(run.engine().instance().storage().digest(),
                  next.engine().instance().storage().digest());
      }
    }
  }
}

TEST(Offload, MoreHostMemoryThanThereIsIsRefused) {
  const CpuDevice cpu;
  StepPlan plan;
  plan.memory.add("optimizer moments", static_cast<std::size_t>(0.6 * node_memory()), false,
                  MemoryPlace::host);
  EXPECT_NO_THROW(require_memory(plan, 1, cpu));
  try {
    require_memory(plan, 2, cpu);
    FAIL();
  } catch (const DeckError& error) {
    EXPECT_NE(std::string(error.what()).find("out of host memory: 2 rank(s)"), std::string::npos);
    EXPECT_NE(error.hint().find("parallel.offload to \"file\""), std::string::npos);
  }
}

TEST(Offload, AllocatesNothingInTheStepLoop) {
  EngineOptions options = test::engine_options(test::tiny_gpt(), "fp32", 2);
  const auto allocations = [&] {
    test::SingleRank single;
    test::EngineRun run(options, *single.mesh);
    run.losses(3);
    const std::int64_t before = test::allocations();
    for (int i = 0; i < 5; ++i) run.step();
    return test::allocations() - before;
  };
  const std::int64_t without = allocations();
  options.offload = test::offload_to_file();
  EXPECT_EQ(allocations(), without);
  options.zero.stage = 2;
  options.offload = {};
  const std::int64_t sharded = allocations();
  options.offload = test::with_gradients(test::offload_to_file());
  EXPECT_EQ(allocations(), sharded);
}

}  // namespace
}  // namespace choir
