// Tests of the engine on one rank: plan and reality, skipped steps, allocations.
#include "src/train/step/engine.hpp"

#include <gtest/gtest.h>

#include "kernels/gemm/gemm.hpp"
#include "src/models/gpt/generator.hpp"
#include "test/support/count_allocations.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

void expect_same_plan(const MemoryPlan& plan, const MemoryPlan& real, const std::string& what) {
  ASSERT_EQ(plan.entries.size(), real.entries.size()) << what;
  for (std::size_t i = 0; i < plan.entries.size(); ++i) {
    EXPECT_EQ(plan.entries[i].name, real.entries[i].name) << what;
    EXPECT_EQ(plan.entries[i].bytes, real.entries[i].bytes) << what << ": " << plan.entries[i].name;
    EXPECT_EQ(plan.entries[i].shared, real.entries[i].shared)
        << what << ": " << plan.entries[i].name;
  }
}

TEST(StepPlanner, EqualsRealityToTheByte) {
  for (const GptConfig& model :
       {test::tiny_gpt(), test::tiny_llama(), test::with_dropout(test::tiny_gpt(), 0.1)})
    for (const char* precision : {"fp64", "fp32", "bf16-mixed", "bf16-true", "fp16-mixed"})
      for (const std::int64_t micro_batches : {1, 4})
        for (const bool generate : {false, true}) {
          const EngineOptions options =
              test::engine_options(model, precision, micro_batches, micro_batches == 4);
          test::SingleRank single;
          const StepPlan plan = plan_step(options, Layout(), 0, 1, generate);
          // The engine has spare memory: it must use exactly the planned amount, not all that it
          // was given.
          test::EngineRun run(options, *single.mesh, plan.arena_bytes + 4096);
          run.losses(3);
          ModelInstance& instance = run.engine().instance();
          instance.loss_sum(run.batch(77));
          if (generate)
            Generator(instance).generate(std::vector<std::int32_t>(8, 1), 12, {.seed = 1});
          run.losses(1);
          const std::string what = std::string(precision) + " x " + std::to_string(micro_batches);
          expect_same_plan(plan.memory, run.engine().memory(), what);
          EXPECT_EQ(plan.arena_bytes, instance.arena().peak()) << what;
          EXPECT_EQ(instance.arena().live(), 0u) << what;
        }
}

// 6 N FLOPs per token for the matrices that multiply, 12 L C T per token for attention (halved:
// causal).
TEST(StepPlanner, CountsTheWork) {
  const EngineOptions options = test::engine_options(test::tiny_gpt(), "fp32", 3);
  const GptConfig& c = options.model.as<GptConfig>();
  const StepPlan plan = plan_step(options, Layout(), 0, 1, false);
  const double tokens = 3.0 * 2 * 8;
  const double matrices = static_cast<double>(c.n_layer * (4 * 32 * 32 + 2 * 32 * 64) + 19 * 32);
  EXPECT_GE(plan.flops, 6 * matrices * tokens);
  EXPECT_LE(plan.flops, (6 * matrices + 14.0 * 2 * 32 * 8) * tokens * 1.25)
      << "and little more than that";
  EXPECT_GT(plan.bytes, 0);
}

// Sampling fits into the planned memory for a prompt of any length.
TEST(StepPlanner, GenerationFitsFromAnyPrompt) {
  const EngineOptions options = test::engine_options(test::tiny_llama(), "fp32", 1);
  const StepPlan plan = plan_step(options, Layout(), 0, 1, true);
  for (std::size_t prompt = 1; prompt <= 11; ++prompt) {
    CpuDevice device;
    test::SingleRank single;
    ModelInstance instance({options.model, options.precision, 1, false}, device, *single.mesh,
                           plan.arena_bytes);
    instance.initialise(1);
    Generator(instance).generate(std::vector<std::int32_t>(prompt, 1), 20, {});
  }
}

TEST(Engine, NanStepChangesNothing) {
  for (const char* precision : {"fp64", "fp32", "bf16-mixed", "bf16-true", "fp16-mixed"}) {
    test::SingleRank single;
    test::EngineRun run(test::engine_options(test::tiny_gpt(), precision, 2), *single.mesh);
    run.losses(2);
    const std::vector<double> before = run.state();
    const StepResult result = run.step(NAN);
    EXPECT_FALSE(result.updated);
    EXPECT_FALSE(std::isfinite(result.loss));
    EXPECT_EQ(run.engine().non_finite_gradients().size(),
              run.engine().instance().parameters().parameters().size());
    EXPECT_TRUE(test::same_bits(before, run.state())) << precision;
    EXPECT_TRUE(run.step().updated) << "nothing of it stays in gradients";
    EXPECT_TRUE(run.engine().non_finite_gradients().empty());
  }
}

std::int64_t allocations_of_steps(const GptConfig& model, const char* precision) {
  test::SingleRank single;
  test::EngineRun run(test::engine_options(model, precision, 4, true), *single.mesh);
  run.losses(3);
  const std::int64_t before = test::allocations();
  for (int i = 0; i < 5; ++i) run.step();
  return test::allocations() - before;
}

// With OpenBLAS only our own code runs in a step: there the count is exact.
TEST(Engine, AllocatesNothingInTheStepLoop) {
  for (const GptConfig& model :
       {test::tiny_gpt(), test::tiny_llama(), test::with_dropout(test::tiny_gpt(), 0.1)})
    EXPECT_EQ(allocations_of_steps(model, "fp64"), 0);
}

/// Number of calls of operator new in one product of a known shape.
std::int64_t allocations_of_gemm(DType type, std::int64_t m, std::int64_t n, std::int64_t k,
                                 ops::GemmOptions options, bool bias, DType out) {
  CpuDevice device;
  const Stream stream(device);
  Buffer a(device, static_cast<std::size_t>(m * k) * 4),
      b(device, static_cast<std::size_t>(n * k) * 4),
      c(device, static_cast<std::size_t>(m * n) * 4);
  const auto view = [](const Buffer& x, DType t, const Shape& s) {
    return TensorView{x.data(), t, s};
  };
  const Buffer d(device, static_cast<std::size_t>(n) * 4);
  if (bias) options.bias = view(d, type, {n});
  const auto call = [&] {
    ops::gemm(stream, view(a, type, options.transpose_a ? Shape{k, m} : Shape{m, k}),
              view(b, type, options.transpose_b ? Shape{n, k} : Shape{k, n}), view(c, out, {m, n}),
              options);
  };
  for (int i = 0; i < 3; ++i) call();
  const std::int64_t before = test::allocations();
  call();
  return test::allocations() - before;
}

// oneDNN may allocate inside its execute(): a step may call operator new only as often as its
// products do by themselves. The rest of the step is our own code, which must not allocate.
TEST(Engine, WhatIsAllocatedBelongsToTheLibrary) {
  const GptConfig c = test::tiny_gpt();
  const std::int64_t rows = 16, width = 32, hidden = 64;
  for (const char* precision : {"fp32", "bf16-mixed"}) {
    const DType type = precision_of(precision).compute;
    std::int64_t of_products = 0;
    const auto layer = [&](std::int64_t inputs, std::int64_t outputs, std::int64_t times,
                           bool bias = true) {
      of_products += times * (allocations_of_gemm(type, rows, outputs, inputs,
                                                  {.transpose_b = true}, bias, type) +
                              allocations_of_gemm(type, rows, inputs, outputs, {}, false, type) +
                              allocations_of_gemm(type, outputs, inputs, rows,
                                                  {.transpose_a = true}, false, DType::f32));
    };
    layer(width, 3 * width, c.n_layer);
    layer(width, width, c.n_layer);
    layer(width, hidden, c.n_layer);
    layer(hidden, width, c.n_layer);
    layer(width, c.vocab_size, 1, false);
    const std::int64_t per_step = allocations_of_steps(c, precision) / 5;
    RecordProperty(std::string(precision) + "_per_step", static_cast<int>(per_step));
    RecordProperty(std::string(precision) + "_of_products", static_cast<int>(4 * of_products));
    EXPECT_LE(per_step, 4 * of_products) << precision << ": four micro-batches";
  }
}

}  // namespace
}  // namespace choir
