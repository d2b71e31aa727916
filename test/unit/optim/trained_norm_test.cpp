// The norm of the whole gradient and its clip factor against plain f64 sums.
#include "src/optim/trained_norm.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/sums/sums.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

struct Gradients {
  explicit Gradients(const char* precision, const GptConfig& model = test::tiny_gpt())
      : options(test::engine_options(model, precision, 1)), run(options, *single.mesh) {
    for (Parameter& p : parameters().parameters())
      for (std::int64_t i = 0; i < p.count(); ++i) {
        const double g = 0.01 * normal_at(philox_key(1, p.name), static_cast<std::uint64_t>(i));
        if (p.gradient.dtype == DType::f64)
          p.gradient.as<double>()[i] = g;
        else
          p.gradient.as<float>()[i] = static_cast<float>(g);
      }
  }
  ParameterSet& parameters() { return run.engine().instance().parameters(); }
  double naive() {
    long double sum = 0;
    for (const double g : run.gradients()) sum += static_cast<long double>(g) * g;
    return static_cast<double>(std::sqrt(sum));
  }
  std::array<double, 2> compute(double max_norm) {
    const Stream& stream = run.engine().instance().stream();
    norm.compute(stream, {});
    ops::StepControl control;
    double loss_sum = 1;
    ops::end_step(stream, {.control = &control,
                           .square_sum = norm.square_sum(),
                           .loss_sums = {&loss_sum, DType::f64, {1}},
                           .max_norm = max_norm});
    return {control.gradient_norm, control.gradient_factor};
  }

  EngineOptions options;
  test::SingleRank single;
  test::EngineRun run;
  TrainedNorm norm{run.engine().instance().storage(), run.engine().instance().device()};
};

TEST(TrainedNorm, EqualsThePlainSum) {
  for (const char* precision : {"fp64", "fp32", "bf16-mixed"}) {
    Gradients g(precision);
    const double expected = g.naive();
    // f64 sums of n positive terms: n eps at the very most, far less with a tree.
    const auto [norm, factor] = g.compute(0.25);
    EXPECT_NEAR(norm, expected, 1e-13 * expected) << precision;
    EXPECT_NEAR(factor, 0.25 / (expected + 1e-6), 1e-13) << precision;
    EXPECT_EQ(g.compute(1e3)[1], 1.0) << "a short gradient is not stretched";
    EXPECT_EQ(g.compute(0)[1], 1.0) << "0 does not clip";
  }
}

// Ranks exchange one sum per tensor; in exact mode they exchange the sums of all chunks. The model
// must be large enough to tell the two apart.
TEST(TrainedNorm, OneSumOfATensorMeetsThoseOfOthers) {
  GptConfig model = test::tiny_gpt();
  model.vocab_size = 5000;
  Gradients g("fp64", model);
  ModelInstance& instance = g.run.engine().instance();
  std::int64_t tensors = 0, chunks = 0;
  for (const Parameter& p : g.parameters().parameters()) {
    ++tensors;
    chunks += (p.count() + ops::kNormChunk - 1) / ops::kNormChunk;
  }
  ASSERT_GT(chunks, tensors + 2) << "the table is cut";
  TrainedNorm exact(instance.storage(), instance.device(), {.places = 2, .exact = true});
  EXPECT_EQ(g.norm.sums().count(), tensors);
  EXPECT_EQ(exact.sums(1).count(), chunks);
  g.norm.compute(instance.stream(), {});
  exact.compute(instance.stream(), {}, 1);
  const double all = exact.square_sum().as<double>()[0];
  EXPECT_GT(all, 0);
  // Both are f64 sums of the same positive chunks in a tree with at most this many levels.
  EXPECT_NEAR(g.norm.square_sum().as<double>()[0], all, 32 * 0x1p-53 * all);
}

// Padding between and behind parameters is not part of the gradient.
TEST(TrainedNorm, PaddingDoesNotCount) {
  Gradients g("fp64");
  const double before = g.compute(1)[0];
  std::vector<bool> used(static_cast<std::size_t>(g.parameters().flat_size()), false);
  double* flat = g.run.engine().instance().storage().all_gradients().as<double>();
  for (const Parameter& p : g.parameters().parameters())
    for (std::int64_t i = 0; i < p.count(); ++i)
      used[static_cast<std::size_t>(p.gradient.as<double>() + i - flat)] = true;
  std::size_t padding = 0;
  for (std::size_t i = 0; i < used.size(); ++i)
    if (!used[i]) flat[i] = 1e6, ++padding;
  ASSERT_GT(padding, 0u);
  EXPECT_EQ(g.compute(1)[0], before);
}

TEST(TrainedNorm, NotFinite) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), HUGE_VAL}) {
    Gradients g("fp64");
    g.parameters().parameters().back().gradient.as<double>()[3] = bad;
    const auto [norm, factor] = g.compute(1);
    EXPECT_FALSE(std::isfinite(norm));
    EXPECT_EQ(factor, 0.0);
    EXPECT_EQ(g.norm.not_finite(),
              std::vector<std::string>{g.parameters().parameters().back().name});
  }
}

}  // namespace
}  // namespace choir
