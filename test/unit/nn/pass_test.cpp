// Tests of a micro-batch in flight: saved tensors are returned in order, and postponed weight
// gradients are equal to immediate ones.
#include "choir/nn/pass.hpp"
#include "src/models/gpt/gpt.hpp"

#include <gtest/gtest.h>

#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

struct PassTest : ::testing::Test {
  CpuDevice device;
  Arena arena{device, 1 << 20};
  Pass pass{Stream(device), arena, precision_of("fp32"), 1};
};

TEST_F(PassTest, SavedTensorsAreLastInFirstOut) {
  pass.begin(Mode::train, {.batch = 1, .tokens = 1}, 0);
  for (int i = 0; i < 3; ++i) pass.save(pass.allocate({i + 1}, "saved"));
  for (int i = 3; i > 0; --i) EXPECT_EQ(pass.pop().shape[0], i);
  EXPECT_EQ(arena.live(), 0u);
}

TEST_F(PassTest, AModelMayBeDeeperThanThereIsRoomForAtFirst) {
  constexpr int kTensors = 40'000;
  Arena deep(device, kTensors * Arena::kAlignment);
  Pass all(Stream(device), deep, precision_of("fp32"), 1);
  all.begin(Mode::train, {.batch = 1, .tokens = 1}, 0);
  for (int i = 0; i < kTensors; ++i) {
    Tensor tensor = all.allocate({1}, "saved");
    tensor.as<float>()[0] = static_cast<float>(i);
    all.save(tensor);
  }
  for (int i = kTensors - 1; i >= 0; --i)
    ASSERT_EQ(all.pop().as<float>()[0], static_cast<float>(i));
  EXPECT_EQ(deep.live(), 0u);
}

TEST_F(PassTest, MisuseIsCaught) {
  pass.begin(Mode::train, {.batch = 1, .tokens = 1}, 0);
  EXPECT_THROW(pass.pop(), Error);
  pass.save(pass.allocate({4}, "forgotten"));
  EXPECT_THROW(pass.begin(Mode::train, {.batch = 1, .tokens = 1}, 0), Error);
  pass.pop();
  pass.begin(Mode::evaluate, {.batch = 1, .tokens = 1}, 0);
  pass.save(pass.allocate({4}, "evaluation keeps nothing"));
  EXPECT_EQ(pass.saved(), 0u);
  EXPECT_EQ(arena.live(), 0u);
}

TEST_F(PassTest, UnsavedKeepsNothingWhileItLives) {
  pass.begin(Mode::train, {.batch = 1, .tokens = 1}, 0);
  const Tensor tensor = pass.allocate({1}, "kept or not");
  {
    const Pass::Unsaved outer(pass);
    pass.save(tensor);
    const Pass::Unsaved inner(pass, false);
    pass.save(tensor);
    EXPECT_EQ(pass.saved(), 0u);
  }
  const Pass::Unsaved not_now(pass, false);
  pass.save(tensor);
  EXPECT_EQ(pass.saved(), 1u);
  pass.pop();
}

int ran = 0;

TEST_F(PassTest, PostponedWorkOwnsItsTensors) {
  pass.begin(Mode::train, {.batch = 1, .tokens = 1}, 0);
  pass.postpone_weight_gradients(true);
  const auto run = [](Pass&, void*, const Tensor& x, const Tensor&) {
    ran += static_cast<int>(x.as<float>()[0]);
  };
  {
    Tensor x = pass.allocate({1}, "input");
    x.as<float>()[0] = 5;
    pass.weight_gradient({run, nullptr, x, x});
  }
  EXPECT_GT(arena.live(), 0u);
  EXPECT_EQ(ran, 0);
  EXPECT_THROW(pass.begin(Mode::train, {.batch = 1, .tokens = 1}, 0), Error)
      << "work would be lost";
  EXPECT_THROW(pass.run_weight_gradients(1), Error) << "another piece";
  pass.run_weight_gradients(0);
  EXPECT_EQ(ran, 5);
  EXPECT_EQ(arena.live(), 0u);
}

std::vector<double> gradients(const GptConfig& config, bool postponed) {
  test::SingleRank single;
  test::EngineRun run(test::engine_options(config, "fp32", 1), *single.mesh, 1 << 20);
  ModelInstance& instance = run.engine().instance();
  Pass& pass = instance.pass();
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    // The gradients contain numbers of another step: the first contribution has to overwrite them.
    const TensorView flat = instance.storage().all_gradients();
    for (std::int64_t i = 0; micro_batch == 0 && i < flat.count(); ++i) flat.as<float>()[i] = 1e3f;
    if (micro_batch == 0)
      for (const Bucket& bucket : instance.parameters().buckets())
        instance.storage().begin_gradients(instance.stream(), bucket);
    const ModelBatch batch = run.batch(micro_batch);
    pass.begin(Mode::train, {.batch = batch.samples, .tokens = config.block_size},
               batch.first_sample);
    pass.postpone_weight_gradients(postponed);
    instance.as<Gpt>().loss(pass, batch["inputs"], batch["targets"], 0.1);
    instance.as<Gpt>().backward(pass, batch["inputs"]);
    if (postponed) pass.run_weight_gradients(0);
  }
  EXPECT_EQ(instance.arena().live(), 0u);
  return run.gradients();
}

TEST(PostponedWeightGradients, AreBitwiseTheSame) {
  GptConfig dropped = test::tiny_gpt();
  dropped.dropout = 0.2;
  for (const GptConfig& config : {test::tiny_gpt(), test::tiny_llama(), dropped})
    EXPECT_TRUE(test::same_bits(gradients(config, false), gradients(config, true)))
        << test::distance(gradients(config, false), gradients(config, true));
}

}  // namespace
}  // namespace choir
