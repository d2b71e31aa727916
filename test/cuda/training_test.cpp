// Tests that a tiny GPT trains on the cuda device: step by step it stays as close to fp64 as the
// CPU in the same precision, and the method of queueing a step changes no bit.
#include <functional>

#include "test/cuda/cuda_fixture.hpp"
#include "test/unit/train/speech_case.hpp"

namespace choir::test {
namespace {

constexpr int kSteps = 6;

GptConfig dropped_gpt() {
  GptConfig c = tiny_gpt();
  c.dropout = 0.1;
  return c;
}

struct Trained {
  std::vector<double> losses, norms, state;
};

Trained train(const EngineOptions& options, std::unique_ptr<Device> device) {
  SingleRank single;
  EngineRun run(options, *single.mesh, std::move(device));
  Engine& engine = run.engine();
  Trained result;
  const auto take = [&] {
    const StepResult r = engine.finish(run.clock());
    EXPECT_TRUE(r.updated);
    result.losses.push_back(r.loss);
    result.norms.push_back(r.grad_norm);
  };
  for (int i = 0; i < kSteps; ++i) {
    run.queue(run.tokens_of_step());
    while (engine.in_flight() > engine.lag()) take();
  }
  while (engine.in_flight() > 0) take();
  result.state = run.state();
  return result;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

class CudaTraining : public CudaTest {
 protected:
  static std::unique_ptr<Device> cuda_device() { return make_device(DeviceKind::cuda); }
  static std::unique_ptr<Device> cpu_device() { return make_device(DeviceKind::cpu); }
};

// Both round every operation in the same way but sum in other orders, so their errors against fp64
// are of similar size: a wrong kernel has an error of far more than a factor of four. Losses are
// means of some 30 tokens, which may agree by luck: one rounding of the result is allowed.
void stays_as_close_as_the_cpu(const GptConfig& model, const char* precision, double roundoff) {
  const EngineOptions exact = engine_options(model, "fp64", 2);
  const EngineOptions options = engine_options(model, precision, 2);
  const Trained oracle = train(exact, make_device(DeviceKind::cpu));
  const Trained cpu = train(options, make_device(DeviceKind::cpu));
  const Trained gpu = train(options, make_device(DeviceKind::cuda));
  const double loss_bound =
      4 * largest_difference(cpu.losses, oracle.losses) + roundoff * oracle.losses[0];
  const double norm_bound =
      4 * largest_difference(cpu.norms, oracle.norms) + roundoff * oracle.norms[0];
  for (int i = 0; i < kSteps; ++i) {
    const auto s = static_cast<std::size_t>(i);
    EXPECT_NEAR(gpu.losses[s], oracle.losses[s], loss_bound) << precision << ", step " << i;
    EXPECT_NEAR(gpu.norms[s], oracle.norms[s], norm_bound) << precision << ", step " << i;
  }
  EXPECT_LT(oracle.losses.back(), oracle.losses.front());
}

TEST_F(CudaTraining, Fp32AgreesWithTheCpuStepByStep) {
  stays_as_close_as_the_cpu(dropped_gpt(), "fp32", 0x1p-24);
  stays_as_close_as_the_cpu(tiny_llama(), "fp32", 0x1p-24);
}

TEST_F(CudaTraining, HalvesAgreeWithTheCpuStepByStep) {
  stays_as_close_as_the_cpu(dropped_gpt(), "bf16-mixed", 0x1p-9);
  stays_as_close_as_the_cpu(tiny_llama(), "bf16-mixed", 0x1p-9);
  stays_as_close_as_the_cpu(dropped_gpt(), "bf16-true", 0x1p-9);
  stays_as_close_as_the_cpu(tiny_llama(), "fp16-mixed", 0x1p-12);
}

TEST_F(CudaTraining, TilesAgreeWithTheCpuStepByStep) {
  const auto tiled = [](GptConfig model) {
    model.tile = 2;
    return model;
  };
  stays_as_close_as_the_cpu(tiled(dropped_gpt()), "fp32", 0x1p-24);
  stays_as_close_as_the_cpu(tiled(dropped_gpt()), "bf16-mixed", 0x1p-9);
  stays_as_close_as_the_cpu(tiled(tiny_llama()), "bf16-mixed", 0x1p-9);
}

// Attention to a few positions at a time: the last tile is smaller than the others.
TEST_F(CudaTraining, TilesOfAttentionAgreeWithTheCpuStepByStep) {
  const auto tiled = [](GptConfig model) {
    model.attention_chunk = 3;
    return model;
  };
  stays_as_close_as_the_cpu(tiled(dropped_gpt()), "fp32", 0x1p-24);
  stays_as_close_as_the_cpu(tiled(tiny_llama()), "bf16-mixed", 0x1p-9);
}

TEST_F(CudaTraining, ARecordedStepGivesTheBitsOfAQueuedOne) {
  EngineOptions options = engine_options(dropped_gpt(), "bf16-mixed", 2);
  options.cuda_graph = false;
  options.lag = 0;
  const Trained queued = train(options, cuda_device());
  const Trained again = train(options, cuda_device());
  EXPECT_TRUE(same_bits(queued.state, again.state));
  options.cuda_graph = true;
  for (const auto& [lag, dependent] : {std::pair(0, false), {1, false}, {1, true}}) {
    options.lag = lag, options.dependent_launch = dependent;
    const Trained recorded = train(options, cuda_device());
    EXPECT_TRUE(same_bits(queued.losses, recorded.losses)) << lag << dependent;
    EXPECT_TRUE(same_bits(queued.norms, recorded.norms)) << lag << dependent;
    EXPECT_TRUE(same_bits(queued.state, recorded.state)) << lag << dependent;
  }
}

TEST_F(CudaTraining, StepsOfSeveralShapesAreRecordedWhenTheyComeAgain) {
  struct Result {
    std::vector<double> losses;
    double flops;
  };
  const auto run = [](bool graphs, bool dependent) {
    EngineOptions options = speech_options(batch_normed(), "fp32", 2);
    options.cuda_graph = graphs, options.dependent_launch = dependent;
    SingleRank single;
    SpeechRun steps(options, *single.mesh, 0, cuda_device());
    Result result;
    for (const std::int64_t of : {0, 1, 0, 1, 2, 1, 0, 0, 2})
      result.losses.push_back(steps.step_of(of).loss);
    result.flops = steps.engine().instance().work().flops;
    return result;
  };
  const Result queued = run(false, false);
  for (const bool dependent : {false, true}) {
    const Result recorded = run(true, dependent);
    EXPECT_TRUE(same_bits(queued.losses, recorded.losses)) << dependent;
    EXPECT_LT(recorded.flops, 0.8 * queued.flops) << "three of nine steps only replayed";
  }
}

TEST_F(CudaTraining, RecomputationChangesNoBit) {
  GptConfig tanh = dropped_gpt();
  tanh.activation = ops::Activation::gelu_tanh;
  GptConfig tiled = dropped_gpt();
  tiled.tile = 2;
  for (const GptConfig& model : {dropped_gpt(), tanh, tiny_llama(), tiled})
    for (const char* precision : {"fp32", "bf16-mixed"}) {
      EngineOptions options = engine_options(model, precision, 2);
      const Trained kept = train(options, cuda_device());
      for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
        options.model.as<GptConfig>().recompute = recompute;
        const Trained again = train(options, cuda_device());
        EXPECT_TRUE(same_bits(kept.losses, again.losses)) << precision;
        EXPECT_TRUE(same_bits(kept.norms, again.norms)) << precision;
        EXPECT_TRUE(same_bits(kept.state, again.state)) << precision;
      }
    }
}

// On one rank a stage shares nothing, but its steps nevertheless gather, scatter and cast. An
// evaluation before the recorded step, and between replayed ones, leaves parameters in the slots of
// stage 3.
TEST_F(CudaTraining, RecordedStepsOfAnyZeroStageSeeTheirOwnParameters) {
  // Otherwise a stage adds up micro-batches in a different order.
  EngineOptions options = engine_options(dropped_gpt(), "bf16-mixed", 2, true);
  const auto run_with_evaluations = [&](const std::function<std::unique_ptr<Device>()>& device) {
    SingleRank single;
    EngineRun run(options, *single.mesh, device());
    std::vector<double> seen;
    for (int i = 0; i < kSteps; ++i) {
      seen.push_back(run.step().loss);
      seen.push_back(run.engine().instance().loss_sum(run.batch(77)));
    }
    const std::vector<double> state = run.state();
    seen.insert(seen.end(), state.begin(), state.end());
    return seen;
  };
  options.cuda_graph = false;
  const std::vector<double> whole = run_with_evaluations(cuda_device);
  options.cuda_graph = true;
  for (const int stage : {0, 1, 2, 3}) {
    options.zero.stage = stage;
    EXPECT_TRUE(same_bits(whole, run_with_evaluations(cuda_device))) << stage;
  }
}

TEST_F(CudaTraining, AStepWithALossThatIsNotANumberChangesNothing) {
  const EngineOptions options = engine_options(tiny_gpt(), "bf16-mixed", 1);
  SingleRank single;
  EngineRun run(options, *single.mesh, cuda_device());
  run.step();
  const std::vector<double> before = run.state();
  EXPECT_FALSE(run.step(NAN).updated);
  EXPECT_TRUE(same_bits(before, run.state()));
  EXPECT_FALSE(run.engine().non_finite_gradients().empty());
  EXPECT_TRUE(run.step().updated);
}

TEST_F(CudaTraining, ThePlanIsWhatIsAllocated) {
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    EngineOptions options = engine_options(tiny_llama(), "bf16-mixed", 2);
    options.model.as<GptConfig>().recompute = recompute;
    SingleRank single;
    EngineRun run(options, *single.mesh, cuda_device());
    run.step();
    EXPECT_EQ(run.engine().instance().arena().peak(), run.plan().arena_bytes);
  }
}

}  // namespace
}  // namespace choir::test
