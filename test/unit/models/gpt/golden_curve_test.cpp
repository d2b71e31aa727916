// Compares twenty steps of training in fp64 with the naive implementation: losses, norms,
// parameters.
#include <gtest/gtest.h>

#include "test/unit/models/gpt/naive_gpt.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

constexpr std::int64_t kCurveMicroBatches = 2;
constexpr int kSteps = 20;

naive::Values values_of(ParameterSet& parameters) {
  naive::Values values;
  for (const Parameter& p : parameters.parameters())
    values[p.name].assign(p.master.as<double>(), p.master.as<double>() + p.count());
  return values;
}

void compare(const naive::Values& expected, const naive::Values& actual) {
  for (const auto& [name, list] : expected)
    EXPECT_LE(test::distance(list, actual.at(name)), 1e-10) << name;
}

/// A small `clip` clips every step, a large one none.
void check_curve(GptConfig config, double clip) {
  config.vocab_size = 7;
  config.block_size = 5;
  config.n_embd = 8;
  config.ffn_width = 12;
  EngineOptions options = test::engine_options(config, "fp64", kCurveMicroBatches);
  options.grad_clip = clip;
  options.optimizer = {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.3};
  test::SingleRank single;
  test::EngineRun run(options, *single.mesh);
  naive::Values weights = values_of(run.engine().instance().parameters());
  std::map<std::string, bool> decayed;  // matrices and embeddings, never norms or biases
  for (const auto& [name, list] : weights)
    decayed[name] = name.find("norm") == std::string::npos && name.ends_with("weight");
  naive::AdamW adamw{0.9, 0.95, 1e-8, 0.3, {}, {}};
  const std::int64_t per_step = kCurveMicroBatches * options.micro_batch_size;
  for (int step = 0; step < kSteps; ++step) {
    naive::Gpt model(config, weights);
    naive::Real sum = model.constant(0);
    for (std::int64_t s = step * per_step; s < (step + 1) * per_step; ++s) {
      std::vector<std::int32_t> ids;
      for (std::int64_t t = 0; t <= config.block_size; ++t)
        ids.push_back(test::token_at(s, t, config.vocab_size));
      sum = sum + model.loss(ids);
    }
    const naive::Real loss = (1.0 / static_cast<double>(per_step * config.block_size)) * sum;
    // Warm-up over 4 steps, then a cosine from 3e-3 to 3e-4 at step 20.
    const double rate = step < 4 ? 3e-3 * (step + 1) / 5
                                 : 3e-4 + 0.5 * (1 + std::cos(M_PI * (step - 4) / 16)) * 2.7e-3;
    const double norm = adamw.update(weights, model.gradients(loss), decayed, rate, clip, step + 1);
    const StepResult result = run.step();
    EXPECT_NEAR(result.loss, loss.value(), 1e-10) << "step " << step;
    EXPECT_NEAR(result.grad_norm, norm, 1e-10) << "step " << step;
    EXPECT_NEAR(result.learning_rate, rate, 1e-16) << "step " << step;
    EXPECT_EQ(norm > clip, clip < 1) << "the test means to clip always or never";
  }
  compare(weights, values_of(run.engine().instance().parameters()));
}

TEST(GoldenCurve, NanoGptClipped) {
  check_curve(test::tiny_gpt(), 0.05);
}
TEST(GoldenCurve, LlamaUnclipped) {
  check_curve(test::tiny_llama(), 100);
}
TEST(GoldenCurve, GroupedQueriesTiedRopeNoBias) {
  GptConfig c = test::tiny_gpt();
  c.n_kv_head = 1;
  c.position = Position::rope;
  c.bias = false;
  check_curve(c, 100);
}

// The comparison detects a gradient that is wrong by one part in 1e6.
TEST(GoldenCurve, NegativeControl) {
  const std::vector<double> a{1, 2, 3}, b{1, 2, 3.000003};
  EXPECT_GT(test::distance(a, b), 1e-10);
}

}  // namespace
}  // namespace choir
