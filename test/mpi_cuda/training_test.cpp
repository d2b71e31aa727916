// Tests of training on several devices: in reproducible mode the ranks have the bits of one rank,
// for any transport of gradients and any part of the state that each keeps; over NCCL the steps are
// recorded and replayed, including tree sums and gathers.
#include <bit>
#include <initializer_list>

#include "choir/core/error.hpp"
#include "src/train/step/memory_fit.hpp"
#include "test/mpi_cuda/device_kinds.hpp"
#include "test/support/exhaustive.hpp"
#include "test/support/offload_case.hpp"
#include "test/unit/train/speech_case.hpp"

namespace choir::test {
namespace {

constexpr int kReplicaSteps = 5;  // the first two are queued, the others recorded if possible
constexpr std::int64_t kReplicaMicroBatches = 4;

/// Masters and moments after a few steps on the ranks of a mesh, which is destroyed afterwards, and
/// the losses of an evaluation after each step: it gathers parameters between replayed steps.
std::vector<double> trained_replicas(std::unique_ptr<Mesh> mesh, std::unique_ptr<Device> device,
                                     int zero = 0, const OffloadOptions& offload = {},
                                     int group = ZeroOptions::kAll) {
  EngineOptions options = engine_options(tiny_gpt(), "bf16-mixed",
                                         kReplicaMicroBatches / mesh->along(Axis::data).size());
  options.reproducible = true;
  options.zero.stage = zero;
  options.zero.group = group;
  options.offload = offload;
  EngineRun run(options, *mesh, std::move(device));
  std::vector<double> losses;
  for (int i = 0; i < kReplicaSteps; ++i) {
    EXPECT_TRUE(run.step().updated);
    losses.push_back(run.engine().instance().loss_sum(run.batch(77)));
  }
  std::vector<double> state = run.state();
  state.insert(state.end(), losses.begin(), losses.end());
  run.end();
  mesh.reset();  // destroyed before its device
  return state;
}

/// Two ranks train everything with both transports; more ranks train each stage with one of the
/// two.
bool here_too(DeviceTransport::Way way, bool staged) {
  return world_size() == 2 || (way == DeviceTransport::Way::staged) == staged || exhaustive();
}

TEST(DeviceTraining, RanksHoldTheBitsOfOneRank) {
  const auto cards = cuda::availability().cards;
  if (cards.empty() || nccl_library().empty()) GTEST_SKIP() << "only under host execution";
  if (!std::has_single_bit(static_cast<unsigned>(world_size()))) GTEST_SKIP() << "needs 2^n ranks";
  const std::vector<double> alone =
      trained_replicas(Mesh::planned(Layout(), 0, 1), make_device(DeviceKind::cuda));
  for (const auto way : {DeviceTransport::Way::staged, DeviceTransport::Way::automatic})
    for (const int zero : {0, 1, 2, 3}) {
      if (!here_too(way, zero % 2 == 0)) continue;
      auto device = make_device(DeviceKind::cuda);
      auto mesh = Mesh::over_world(Layout(1, 1, world_size(), 1), Transport::automatic);
      mesh->attach(*device, {.way = way, .nccl_library = nccl_library()});
      const std::string transport = mesh->along(Axis::data).transport();
      EXPECT_ALL_RANKS(same_bits(alone, trained_replicas(std::move(mesh), std::move(device), zero)))
          << transport << ", stage " << zero;
    }
}

// Gradients are summed and parameters gathered by different communicators, and a window belongs to
// one: each bucket is in a window of the communicator that works on it.
TEST(DeviceTraining, BucketsAreInWindowsOfTheirCommunicators) {
  const auto cards = cuda::availability().cards;
  if (cards.empty() || nccl_library().empty()) GTEST_SKIP() << "only under host execution";
  if (world_size() != 2) GTEST_SKIP() << "of 2 ranks";
  const auto in_windows = emulated_function<int (*)()>("nccl_fake_calls_in_windows");
  setenv("HOST_CUDA_CAPABILITY", "80", 1);  // pages of 2 MiB, of which NCCL fills whole ones
  GptConfig model = tiny_gpt();
  model.n_embd = 128, model.ffn_width = 512, model.n_layer = 5;
  auto device = make_device(DeviceKind::cuda);
  auto mesh = Mesh::over_world(Layout(1, 1, world_size(), 1), Transport::automatic);
  mesh->attach(*device, {.way = DeviceTransport::Way::nccl, .nccl_library = nccl_library()});
  EngineOptions options = engine_options(model, "bf16-mixed", 1);
  options.zero.stage = 1;
  EngineRun run(options, *mesh, std::move(device));
  const auto buckets = static_cast<int>(run.engine().instance().parameters().buckets().size());
  const int before = in_windows();
  EXPECT_TRUE(run.step().updated);
  const int calls = in_windows() - before;
  print_measured("calls in windows, by bucket", static_cast<double>(calls) / buckets, "", "from",
                 2);
  EXPECT_ALL_RANKS(calls >= 2 * buckets) << calls << " for " << buckets << " buckets";
  run.end();
  mesh.reset();  // destroyed before its device
  unsetenv("HOST_CUDA_CAPABILITY");
}

// Rank 0 replays a step that its peers do not join, as if they had died: it must end by itself.
TEST(DeviceTraining, AStepWithoutPeersDoesNotHoldUpTheEnd) {
  const auto cards = cuda::availability().cards;
  if (cards.empty() || nccl_library().empty()) GTEST_SKIP() << "only under host execution";
  if (world_size() == 1) GTEST_SKIP() << "needs peers";
  if (world_size() != 2 && !exhaustive()) GTEST_SKIP() << "of 2 ranks";
  auto device = make_device(DeviceKind::cuda);
  auto mesh = Mesh::over_world(Layout(1, 1, world_size(), 1), Transport::automatic);
  mesh->attach(*device, {.way = DeviceTransport::Way::automatic, .nccl_library = nccl_library()});
  const EngineOptions options = engine_options(tiny_gpt(), "bf16-mixed", 1);
  const StepPlan plan =
      plan_step(options, mesh->layout(), mesh->rank(), mesh->node().size(), false, device.get());
  auto engine = std::make_unique<Engine>(options, *device, *mesh, plan.arena_bytes);
  engine->instance().initialise(options.seed);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(options.micro_batch_size *
                                                         options.model.as<GptConfig>().block_size));
  const TensorView view{ids.data(), DType::i32, {static_cast<std::int64_t>(ids.size())}};
  PhaseClock clock;
  const auto queue = [&](std::int64_t step) {
    engine->step(
        step, [&](std::int64_t) { return token_batch(options.micro_batch_size, view, view); },
        static_cast<double>(ids.size()) * world_size(), clock);
  };
  for (int i = 0; i < kReplicaSteps; ++i) {
    queue(i);
    engine->finish(clock);
  }
  if (mesh->rank() == 0) queue(kReplicaSteps);
  engine.reset();
  mesh.reset();  // destroyed before its device
}

// NCCL takes memory for its channels when they are first used, after the plan was accepted.
TEST(DeviceTraining, APlanThatIsAcceptedLeavesRoomForNccl) {
  const auto cards = cuda::availability().cards;
  if (cards.empty() || nccl_library().empty()) GTEST_SKIP() << "only under host execution";
  if (world_size() != 2) GTEST_SKIP() << "of 2 ranks";
  const char* const usual = std::getenv("HOST_CUDA_MEMORY");
  const std::string memory = usual != nullptr ? usual : "";
  setenv("HOST_CUDA_MEMORY", "720", 1);
  auto device = make_device(DeviceKind::cuda);
  Device& card = *device;
  auto mesh = Mesh::over_world(Layout(1, 1, world_size(), 1), Transport::automatic);
  mesh->attach(card, {.way = DeviceTransport::Way::automatic, .nccl_library = nccl_library()});
  EngineOptions options = engine_options(tiny_gpt(), "bf16-mixed", 1);
  const StepPlan plan = plan_in_memory(options, *mesh, false, card);
  // One communicator of two ranks has 32 channels of 12 MiB.
  const std::size_t of_nccl = plan.memory.bytes_of("NCCL, about");
  EXPECT_ALL_RANKS(of_nccl >= std::size_t{32 * 12} << 20) << of_nccl;
  constexpr std::size_t kMargin = std::size_t{8} << 20;
  const auto needs = static_cast<double>(plan.memory.total() + kMargin);
  {
    const Buffer somebody(card,
                          static_cast<std::size_t>(free_for_plans(card) - needs) + 2 * kMargin);
    std::string text;
    try {
      require_memory(plan, 1, card);
    } catch (const DeckError& error) {
      text = error.what();
    }
    EXPECT_ALL_RANKS(text.find("NCCL, about") != std::string::npos) << text;
  }
  auto somebody =
      std::make_unique<Buffer>(card, static_cast<std::size_t>(free_for_plans(card) - needs));
  EXPECT_NO_THROW(require_memory(plan, 1, card));
  EngineRun run(options, *mesh, std::move(device));
  for (int i = 0; i < kReplicaSteps; ++i) EXPECT_TRUE(run.step().updated);
  run.end();
  mesh.reset();  // destroyed before its device
  somebody.reset();
  usual != nullptr ? setenv("HOST_CUDA_MEMORY", memory.c_str(), 1) : unsetenv("HOST_CUDA_MEMORY");
}

// Memory of the arena that only one rank holds between steps makes this rank record its step again
// while its peers replay theirs.
TEST(DeviceTraining, RanksThatRecordAloneAreNamed) {
  const auto cards = cuda::availability().cards;
  if (cards.empty() || nccl_library().empty()) GTEST_SKIP() << "only under host execution";
  if (world_size() != 2) GTEST_SKIP() << "of 2 ranks";
  auto device = make_device(DeviceKind::cuda);
  auto mesh = Mesh::over_world(Layout(1, 1, world_size(), 1), Transport::automatic);
  mesh->attach(*device, {.way = DeviceTransport::Way::automatic, .nccl_library = nccl_library()});
  mesh->check_calls();
  constexpr std::size_t kMore = 1 << 20;
  EngineRun run(engine_options(tiny_gpt(), "bf16-mixed", 1), *mesh, std::move(device), kMore);
  for (int i = 0; i < kReplicaSteps; ++i) EXPECT_TRUE(run.step().updated);
  Tensor held;
  if (mesh->rank() == 1) held = run.engine().instance().arena().allocate(DType::u8, {4096}, "held");
  std::string text;
  try {
    run.step();
  } catch (const CommError& error) {
    text = error.what();
  }
  EXPECT_ALL_RANKS(text.find("rank 1 records its step with 4.0 KiB") != std::string::npos &&
                   text.find("but rank 0 replays its step") != std::string::npos)
      << text;
  held.reset();
  run.end();
  mesh.reset();  // destroyed before its device
}

/// Losses and counted FLOPs of a few steps of speech on two data ranks.
struct SpeechSteps {
  std::vector<double> losses;
  std::vector<double> flops;  ///< of each step; none if it was only replayed
  std::string use;
};
SpeechSteps speech_steps(bool graphs) {
  auto device = make_device(DeviceKind::cuda);
  auto mesh = Mesh::over_world(Layout(1, 1, world_size(), 1), Transport::automatic);
  mesh->attach(*device, {.way = DeviceTransport::Way::nccl, .nccl_library = nccl_library()});
  EngineOptions options = speech_options(batch_normed(), "fp32", 1);
  options.cuda_graph = graphs;
  SpeechRun run(options, *mesh, 0, std::move(device));
  const auto samples = [&](std::int64_t micro_batch) {
    return run.speech().shape(micro_batch).audio_samples;
  };
  std::int64_t unequal = 0;  // a step with different shapes on the ranks
  while (samples(2 * unequal) == samples(2 * unequal + 1)) ++unequal;
  SpeechSteps result;
  double before = 0;
  const auto note = [&](const StepResult& step) {
    result.losses.push_back(step.loss);
    const double now = run.engine().instance().work().flops;
    result.flops.push_back(now - before);
    before = now;
  };
  for (int repeat = 0; repeat < 4; ++repeat) {
    note(run.step_of_one(0));  // the same micro-batch on both ranks
    note(run.step_of(unequal));
  }
  result.use = run.engine().graph_use();
  run.end();
  mesh.reset();  // destroyed before its device
  return result;
}

TEST(DeviceTraining, SpeechIsRecordedWhereTheRanksHaveEqualShapes) {
  const auto cards = cuda::availability().cards;
  if (cards.empty() || nccl_library().empty()) GTEST_SKIP() << "only under host execution";
  if (world_size() != 2) GTEST_SKIP() << "of 2 ranks";
  const SpeechSteps queued = speech_steps(false), recorded = speech_steps(true);
  EXPECT_ALL_RANKS(same_bits(queued.losses, recorded.losses));
  std::vector<double> expected = queued.flops;
  expected[4] = expected[6] = 0;  // the shapes come for the third time, and for the fourth
  EXPECT_ALL_RANKS(expected == recorded.flops);
  EXPECT_NE(recorded.use.find("are those of all data-parallel ranks"), std::string::npos)
      << recorded.use;
}

/// Compares ranks that keep a part of their state beside the device, as `offload` says for a ZeRO
/// stage, with one rank that keeps nothing there.
template <class Offload>
void expect_same_bits_offloaded(std::initializer_list<int> stages, const Offload& offload,
                                int group = ZeroOptions::kAll) {
  const auto cards = cuda::availability().cards;
  if (cards.empty() || nccl_library().empty()) GTEST_SKIP() << "only under host execution";
  if (!std::has_single_bit(static_cast<unsigned>(world_size()))) GTEST_SKIP() << "needs 2^n ranks";
  const std::vector<double> alone =
      trained_replicas(Mesh::planned(Layout(), 0, 1), make_device(DeviceKind::cuda));
  for (const auto way : {DeviceTransport::Way::staged, DeviceTransport::Way::automatic})
    for (const int zero : stages) {
      if (!here_too(way, zero == 3)) continue;
      auto device = make_device(DeviceKind::cuda);
      auto mesh = Mesh::over_world(Layout(1, 1, world_size(), 1), Transport::automatic);
      mesh->attach(*device, {.way = way, .nccl_library = nccl_library()});
      const std::string transport = mesh->along(Axis::data).transport();
      EXPECT_ALL_RANKS(same_bits(
          alone, trained_replicas(std::move(mesh), std::move(device), zero, offload(zero), group)))
          << transport << ", stage " << zero;
    }
}

// State, and for stage 3 parameters, are in host memory beside every rank's device.
TEST(DeviceTraining, OffloadChangesNoBitOnRanks) {
  expect_same_bits_offloaded({1, 3}, [](int zero) { return offload_to_host(zero == 3); });
}

TEST(DeviceTraining, OffloadedGradientsChangeNoBitOnRanks) {
  // More ranks form groups, whose sums are added over the replicas before they are stored.
  const int group = world_size() > 2 ? world_size() / 2 : ZeroOptions::kAll;
  expect_same_bits_offloaded(
      {2, 3}, [](int) { return with_gradients(offload_to_host()); }, group);
}

// Each rank is a group of its own and adds micro-batches in host memory before the replicas do.
TEST(DeviceTraining, OffloadedGradientsOfReplicasChangeNoBit) {
  if (world_size() != 2) GTEST_SKIP() << "of 2 ranks";
  expect_same_bits_offloaded(
      {2}, [](int) { return with_gradients(offload_to_host()); }, 1);
}

}  // namespace
}  // namespace choir::test
