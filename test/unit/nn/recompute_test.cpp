// Tests of recomputation: no bit of the training changes, the kept bytes are those of a formula,
// and recomputed work is counted separately.
#include "choir/nn/pass.hpp"
#include "src/models/gpt/gpt.hpp"

#include <gtest/gtest.h>

#include "test/support/transformer_formulas.hpp"
#include "test/unit/nn/trained.hpp"

namespace choir {
namespace {

using test::Trained;

constexpr Recompute kAgain[] = {Recompute::selective, Recompute::full};

GptConfig tanh_gpt() {
  GptConfig c = test::tiny_gpt();
  c.activation = ops::Activation::gelu_tanh;
  return c;
}

/// RMSNorm, SwiGLU, rotary positions, grouped queries; and models with the options that
/// these lack.
std::vector<GptConfig> models_that_recompute() {
  GptConfig relu = test::tiny_gpt();
  relu.activation = ops::Activation::relu;
  relu.position = Position::rope;
  relu.n_kv_head = 1;
  return {test::with_dropout(test::tiny_gpt()),   test::tiny_gpt(),
          test::with_dropout(tanh_gpt()),         tanh_gpt(),
          test::with_dropout(test::tiny_llama()), relu};
}

Trained train_with(EngineOptions options, Recompute recompute) {
  options.model.as<GptConfig>().recompute = recompute;
  return test::trained(options, 3);
}

TEST(Recompute, ChangesNoBitInAnyPrecision) {
  int index = 0;
  for (const GptConfig& model : models_that_recompute()) {
    for (const char* precision : {"fp64", "fp32", "bf16-mixed", "bf16-true", "fp16-mixed"}) {
      const EngineOptions options = test::engine_options(model, precision, 2);
      const Trained kept = train_with(options, Recompute::none);
      for (const Recompute recompute : kAgain) {
        const Trained again = train_with(options, recompute);
        const std::string what = fmt::format("model {}, {}, {}", index, precision,
                                             recompute == Recompute::full ? "full" : "selective");
        EXPECT_TRUE(test::same_bits(kept.losses, again.losses)) << what;
        EXPECT_TRUE(test::same_bits(kept.norms, again.norms)) << what;
        EXPECT_TRUE(test::same_bits(kept.state, again.state))
            << what << ": " << test::distance(kept.state, again.state);
      }
    }
    ++index;
  }
}

/// Gradients of three micro-batches that are in flight at once, as in a pipeline: all forward, then
/// backward in order, with weight gradients at once or one micro-batch later.
std::vector<double> gradients_in_flight(GptConfig config, const char* precision,
                                        Recompute recompute, bool postponed) {
  constexpr int kPasses = 3;
  config.recompute = recompute;
  test::SingleRank single;
  test::EngineRun run(test::engine_options(config, precision, 1), *single.mesh, 1 << 20);
  ModelInstance& instance = run.engine().instance();
  std::vector<std::unique_ptr<Pass>> passes;
  std::vector<std::vector<std::int32_t>> ids;
  for (const Bucket& bucket : instance.parameters().buckets())
    instance.storage().begin_gradients(instance.stream(), bucket);
  const auto view = [](std::vector<std::int32_t>& v) {
    return TensorView{v.data(), DType::i32, {static_cast<std::int64_t>(v.size())}};
  };
  for (int i = 0; i < kPasses; ++i) {
    const ModelBatch batch = run.batch(i);
    const auto* tokens = batch["inputs"].as<std::int32_t>();
    ids.emplace_back(tokens, tokens + batch["inputs"].count());
    passes.push_back(
        std::make_unique<Pass>(instance.stream(), instance.arena(), precision_of(precision), 1337));
    Pass& pass = *passes.back();
    pass.begin(Mode::train, {.batch = batch.samples, .tokens = config.block_size},
               batch.first_sample);
    pass.postpone_weight_gradients(postponed);
    instance.as<Gpt>().loss(pass, view(ids.back()), batch["targets"], 0.1);
  }
  for (int i = 0; i < kPasses; ++i) {
    instance.as<Gpt>().backward(*passes[i], view(ids[static_cast<std::size_t>(i)]));
    if (postponed && i > 0) passes[i - 1]->run_weight_gradients(0);
  }
  if (postponed) passes.back()->run_weight_gradients(0);
  EXPECT_EQ(instance.arena().live(), 0u);
  return run.gradients();
}

TEST(Recompute, WorksWithPassesInFlightAndPostponedWeightGradients) {
  for (const GptConfig& model : models_that_recompute())
    for (const char* precision : {"fp64", "fp32", "bf16-mixed"})
      for (const bool postponed : {false, true}) {
        const auto kept = gradients_in_flight(model, precision, Recompute::none, postponed);
        for (const Recompute recompute : kAgain)
          EXPECT_TRUE(
              test::same_bits(kept, gradients_in_flight(model, precision, recompute, postponed)))
              << precision << (postponed ? ", postponed" : "");
      }
}

// Activations of a layer that are stored for backward. e: bytes of an activation, s: of a
// statistic, N tokens.
//   none       e N (2 C  both norms' input + 2 C  their output + Q  queries, keys, values
//                   + C  attention's output + a F  before the activation + F  after it)
//              + s N (2 or 4 statistics of norms + H  log-sum-exps)
//   selective  e N (2 C + Q + C + a F) + s N H
//   full       e N C
double kept_bytes(const GptConfig& c, const Precision& p, Recompute recompute, double tokens) {
  const auto e = static_cast<double>(size_of(p.compute));
  const auto s = static_cast<double>(size_of(p.statistic));
  const auto width = static_cast<double>(c.n_embd), hidden = static_cast<double>(c.ffn_width);
  const auto qkv = static_cast<double>((c.n_head + 2 * c.n_kv_head) * c.head_width());
  const double products = 2 * width + qkv + width + ops::activation_inputs(c.activation) * hidden;
  const auto heads = static_cast<double>(c.n_head);
  if (recompute == Recompute::full) return e * tokens * width;
  if (recompute == Recompute::selective) return e * tokens * products + s * tokens * heads;
  const double of_norms = c.norm == ops::Norm::layernorm ? 4 : 2;
  return e * tokens * (products + 2 * width + hidden) + s * tokens * (of_norms + heads);
}

struct Peaks {
  double live = 0,
         arena = 0;  ///< peak bytes of tensors; the same with the holes between them
};

/// The peaks of one step that ran.
Peaks peaks(GptConfig model, const char* precision, std::int64_t layers, Recompute recompute) {
  model.n_layer = layers;
  model.recompute = recompute;
  test::SingleRank single;
  test::EngineRun run(test::engine_options(model, precision, 1), *single.mesh);
  run.step();
  const Arena& arena = run.engine().instance().arena();
  EXPECT_EQ(arena.peak(), run.plan().arena_bytes);
  return {static_cast<double>(arena.peak_live()), static_cast<double>(arena.peak())};
}

TEST(Recompute, ALayerCostsWhatTheFormulaSays) {
  constexpr double kTokens = 16;  // 64 bytes of statistics: nothing is rounded up
  for (const GptConfig& model : models_that_recompute())
    for (const char* precision : {"fp64", "fp32", "bf16-mixed"})
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        const Peaks few = peaks(model, precision, 3, recompute);
        const Peaks many = peaks(model, precision, 9, recompute);
        const double kept = kept_bytes(model, precision_of(precision), recompute, kTokens);
        const std::string what = fmt::format("{}, {}", precision, static_cast<int>(recompute));
        EXPECT_EQ(many.live - few.live, 6 * kept) << what;
        EXPECT_NEAR(many.arena - few.arena, 6 * kept, kept) << what << ": holes add up";
      }
}

// The paper keeps two masks of dropout, which are drawn again here, and it keeps no statistics.
TEST(Recompute, TheFormulaIsThatOfKorthikanti) {
  GptConfig c = test::tiny_gpt();
  c.ffn_width = 4 * c.n_embd;
  const double tokens = 16, width = 32;
  const TransformerShape shape{.width = width, .layers = 1, .heads = 4, .sequence = 8};
  const Precision bf16 = precision_of("bf16-mixed");
  const double masks = 2 * tokens * width, statistics = 4 * tokens * (4 + 4);
  EXPECT_EQ(kept_bytes(c, bf16, Recompute::none, tokens),
            layer_activation_bytes(shape, {.micro_batch = 2, .recompute = Recompute::selective}) -
                masks + statistics);
  EXPECT_EQ(kept_bytes(c, bf16, Recompute::full, tokens),
            layer_activation_bytes(shape, {.micro_batch = 2, .recompute = Recompute::full}));
}

double repeated_flops(GptConfig model, Recompute recompute) {
  model.recompute = recompute;
  const StepPlan plan = plan_step(test::engine_options(model, "fp32", 3), Layout(), 0, 1, false);
  GptConfig once = model;
  once.recompute = Recompute::none;
  const StepPlan kept = plan_step(test::engine_options(once, "fp32", 3), Layout(), 0, 1, false);
  EXPECT_EQ(kept.repeated_flops, 0);
  EXPECT_EQ(kept.hfu_over_mfu(), 1);
  EXPECT_EQ(plan.flops - plan.repeated_flops, kept.flops) << "the work of the model is the same";
  return plan.repeated_flops;
}

// A norm is counted as 8 operations per value, 9 with the addition before it; gelu as 30.
TEST(Recompute, CountsWhatItRepeats) {
  const GptConfig c = test::tiny_gpt();
  const double layers = 2, tokens = 3 * 16, width = 32, hidden = 64;
  EXPECT_EQ(repeated_flops(c, Recompute::selective), layers * tokens * (16 * width + 30 * hidden));
  // Every product of a layer except the last. Attention has two products; half or all of them are
  // counted.
  const double products = 2 * (4 * width * width + width * hidden);
  const double others = 17 * width + 30 * hidden, scores = 4 * width * 8;
  const double full = repeated_flops(c, Recompute::full);
  EXPECT_GE(full, layers * tokens * (products + others + scores / 2));
  EXPECT_LE(full, layers * tokens * (products + others + scores * 1.25));
}

}  // namespace
}  // namespace choir
