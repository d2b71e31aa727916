// Tests of precisions with special rules, in layers shared by ranks: random rounding of weights,
// loss scales; and sums in a fixed order.
#include "src/comm/agreement.hpp"
#include "src/core/hash.hpp"
#include "test/mpi/train/tensor_case.hpp"

namespace choir {
namespace {

using test::alone;
using test::Curve;
using test::gpt;
using test::kMicroBatches;
using test::kSteps;
using test::layouts;
using test::llama;
using test::mesh_of;
using test::options_of;
using test::train;

// Weights are rounded with the same random numbers, so the remaining difference are roundings of
// sums of gradients. It must be less than the effect of rounding on one rank; a layout is allowed
// four times the distance to fp64, as in `choir verify`.
TEST(TensorPrecision, Bf16WeightsTrainNearlyTheSame) {
  EngineOptions options = options_of(gpt(), false);
  const Curve exact = alone(options);
  options.precision = precision_of("bf16-true");
  const Curve one = alone(options);
  const double losses = 4 * test::distance(exact.losses, one.losses);
  const double state = 4 * test::distance(exact.state, one.state);
  for (const Layout& layout : layouts())
    for (const int stage : {0, 3}) {
      options.sequence = true;
      options.zero = {.stage = stage};
      const auto mesh = mesh_of(layout);
      const Curve many = train(options, *mesh);
      EXPECT_ALL_RANKS(test::distance(one.losses, many.losses) <= losses)
          << test::distance(one.losses, many.losses) << " of " << losses;
      EXPECT_ALL_RANKS(test::distance(one.state, many.state) <= state)
          << test::distance(one.state, many.state) << " of " << state;
    }
}

// An overflow on one rank of the tensor axis is an overflow for all of them: no rank updates, all
// halve the loss scale, and the next step counts again.
TEST(TensorPrecision, AnOverflowOnOneRankSkipsEverywhere) {
  EngineOptions options = options_of(gpt(), false);
  options.precision = precision_of("fp16-mixed");
  options.loss_scaling = {.start = 1024, .window = 2000};
  options.grad_clip = 0;
  options.compare_counts = false;  // one rank is told another number of tokens below
  for (const Layout& layout : layouts())
    for (const int stage : {0, 2}) {
      const auto mesh = mesh_of(layout);
      options.zero = {.stage = stage};
      options.micro_batches = kMicroBatches / layout.size(Axis::data);
      test::EngineRun run(options, *mesh);
      run.losses(2);
      const std::vector<double> before = run.state();
      // Gradients of the logits are divided by this number: 2^-20 of the tokens makes them larger
      // than 65504 on this rank, while its loss and those of all others are finite. (The last of
      // four ranks has only padding of the vocabulary, which cannot overflow.)
      const bool victim = mesh->rank() == test::world_size() / 2;
      const StepResult skipped = run.step(run.tokens_of_step() * (victim ? 0x1p-20 : 1));
      EXPECT_ALL_RANKS(std::isfinite(skipped.loss));
      EXPECT_ALL_RANKS(!skipped.updated && skipped.overflow && skipped.loss_scale == 1024);
      EXPECT_ALL_RANKS(test::same_bits(before, run.state()));
      const StepResult next = run.step();
      EXPECT_ALL_RANKS(next.updated && next.loss_scale == 512);
      EXPECT_ALL_RANKS(!test::same_bits(before, run.state()));
      require_equal_parameters(run.engine(), "parameters after an overflow");
    }
}

// A scale that is far too high is reduced in the same steps on all ranks.
TEST(TensorPrecision, LossScalesAreDecidedAlike) {
  EngineOptions options = options_of(gpt(), true);
  options.precision = precision_of("fp16-mixed");
  options.loss_scaling = {.start = 0x1p36, .window = 3};
  for (const Layout& layout : layouts()) {
    const auto mesh = mesh_of(layout);
    options.micro_batches = kMicroBatches / layout.size(Axis::data);
    test::EngineRun run(options, *mesh);
    std::vector<double> scales;
    int updates = 0;
    for (int i = 0; i < 2 * kSteps; ++i) {
      const StepResult result = run.step();
      scales.push_back(result.loss_scale);
      updates += result.updated;
    }
    EXPECT_ALL_RANKS(updates > 0 && updates < 2 * kSteps) << updates;
    const auto crc = crc32c(scales.data(), scales.size() * sizeof(double));
    require_equal(mesh->world(), crc, "loss scales");
    require_equal_parameters(run.engine(), "parameters");
  }
}

// For a given tensor size the numbers do not depend on how many ranks share the batch, the layers
// or the state.
TEST(TensorPrecision, ReproducibleOverTheOtherAxes) {
  if (test::world_size() != 4) GTEST_SKIP() << "needs four ranks";
  const auto wide = mesh_of(Layout(2, 1, 2, 1)), deep = mesh_of(Layout(2, 1, 1, 2));
  const auto pair = Mesh::over(wide->along(Axis::tensor), Layout(2, 1, 1, 1), Transport::automatic);
  for (const char* precision : {"fp32", "bf16-mixed", "bf16-true", "fp16-mixed"})
    for (const GptConfig& model : {gpt(), llama(1)}) {
      EngineOptions options = options_of(model, true);
      options.model.as<GptConfig>().label_smoothing = 0.1;
      options.precision = precision_of(precision);
      if (options.precision.compute == DType::f16)
        options.loss_scaling = {.start = 1024, .window = 0};
      options.reproducible = true;
      const Curve two = train(options, *pair, 5);
      for (const int stage : {0, 1, 2, 3}) {
        options.zero = {.stage = stage};
        const Curve four = train(options, *wide, 5);
        EXPECT_ALL_RANKS(test::same_bits(two.losses, four.losses)) << precision << " " << stage;
        EXPECT_ALL_RANKS(test::same_bits(two.norms, four.norms)) << precision << " " << stage;
        EXPECT_ALL_RANKS(test::same_bits(two.state, four.state)) << precision << " " << stage;
      }
      options.zero = {};
      const Curve staged = train(options, *deep, 5);  // each rank has the weights of its stage
      EXPECT_ALL_RANKS(test::same_bits(two.losses, staged.losses)) << precision;
      EXPECT_ALL_RANKS(test::same_bits(two.norms, staged.norms)) << precision;
    }
}

}  // namespace
}  // namespace choir
