// Muon against golden numbers and its reference: the iteration, whole trajectories, and the parts
// on vectors and tails.
#include "src/optim/muon.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "kernels/cpu/ref_element.hpp"
#include "kernels/update/muon.hpp"
#include "src/device/cpu_device.hpp"
#include "src/optim/newton_schulz.hpp"
#include "test/unit/optim/muon_golden.hpp"

namespace choir {
namespace {

struct Cpu {
  CpuDevice device;
  Stream stream{device};
};

TensorView view(std::vector<double>& values) {
  return {values.data(), DType::f64, {std::ssize(values)}};
}

void orthogonalise(Cpu& cpu, const NewtonSchulzSet& set, std::int64_t rows, std::int64_t columns,
                   std::vector<double>& x, std::int64_t steps = 0) {
  NewtonSchulz iteration(set, steps);
  const std::vector<NewtonSchulz::Extents> extents{{2, 3}, {rows, columns}};
  iteration.reserve(cpu.device, DType::f64, extents);
  iteration.orthogonalise(cpu.stream, view(x).reshaped({rows, columns}));
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double most = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    most = std::max(most, std::fabs(a[i] - b[i]));
  return most;
}

// The results have norms of about sqrt(3); some 100 roundings, which a step amplifies by up to 8.
TEST(NewtonSchulz, GoldenResultsOfEverySet) {
  Cpu cpu;
  std::size_t met = 0;
  for (const test::GoldenIterations& golden : test::golden_iterations())
    for (const test::GoldenIteration& of : golden.of_set) {
      std::vector<double> x = golden.matrix;
      orthogonalise(cpu, newton_schulz_set(of.coefficients), golden.rows, golden.columns, x);
      EXPECT_LE(distance(x, of.result), 1e-13) << of.coefficients << " " << golden.rows;
      ++met;
    }
  EXPECT_EQ(met, 2 * newton_schulz_sets().size());
}

TEST(NewtonSchulz, FewerAndMoreStepsThanTriples) {
  Cpu cpu;
  const test::GoldenIterations& golden = test::golden_iterations().front();
  const NewtonSchulzSet& quintic = newton_schulz_set("quintic");
  const auto of_triples = [&](std::vector<NewtonSchulzTriple> triples) {
    std::vector<double> x = golden.matrix;
    orthogonalise(cpu, {"own", triples}, golden.rows, golden.columns, x);
    return x;
  };
  const auto of_steps = [&](std::int64_t steps) {
    std::vector<double> x = golden.matrix;
    orthogonalise(cpu, quintic, golden.rows, golden.columns, x, steps);
    return x;
  };
  const auto& t = quintic.triples;
  EXPECT_EQ(of_steps(2), of_triples({t[0], t[1]}));
  EXPECT_EQ(of_steps(7), of_triples({t[0], t[1], t[2], t[3], t[4], t[4], t[4]}));
  EXPECT_NE(of_steps(5), of_steps(6));
}

TEST(NewtonSchulz, ZerosStayZerosAndSizesDoNotMatter) {
  Cpu cpu;
  std::vector<double> zeros(12, 0.0);
  orthogonalise(cpu, newton_schulz_set("simple"), 3, 4, zeros);
  EXPECT_EQ(zeros, std::vector<double>(12, 0.0));
  const test::GoldenIterations& golden = test::golden_iterations().front();
  std::vector<double> x = golden.matrix, large = x;
  for (double& value : large) value *= 0x1p40;
  orthogonalise(cpu, newton_schulz_set("simple"), golden.rows, golden.columns, x);
  orthogonalise(cpu, newton_schulz_set("simple"), golden.rows, golden.columns, large);
  EXPECT_EQ(x, large);
}

TEST(NewtonSchulz, FlopsOfAStep) {
  EXPECT_EQ(newton_schulz_flops(3, 5), 4 * 9 * 5 + 2 * 27);
  EXPECT_EQ(newton_schulz_flops(5, 3), newton_schulz_flops(3, 5));
}

struct Trajectory {
  std::vector<double> losses, weights;
};

/// 20 steps on the golden matrices; `alone`: the rows of each matrix in two parts.
Trajectory trajectory(std::string_view scale, bool nesterov, bool alone = false) {
  Cpu cpu;
  std::vector<test::GoldenMatrix> all = test::golden_matrices();
  std::vector<std::vector<double>> momenta;
  for (const test::GoldenMatrix& m : all) momenta.emplace_back(m.w.size());
  const ops::StepControl control{.learning_rate = 0.02, .apply = 1, .gradient_factor = 0.5};
  Trajectory t;
  for (int step = 0; step <= 20; ++step) {
    double loss = 0;
    for (std::size_t k = 0; k < all.size(); ++k) {
      test::GoldenMatrix& m = all[k];
      std::vector<double> gradient(m.w.size()), direction(m.w.size());
      for (std::size_t i = 0; i < m.w.size(); ++i) {
        loss += m.s[i] * (m.w[i] - m.t[i]) * (m.w[i] - m.t[i]) / 2;
        gradient[i] = 2 * m.s[i] * (m.w[i] - m.t[i]);  // the factor halves it
      }
      if (step == 20) continue;
      ops::muon_momentum(cpu.stream, {.gradient = view(gradient),
                                      .m = view(momenta[k]),
                                      .direction = view(direction),
                                      .momentum = 0.95,
                                      .nesterov = nesterov,
                                      .control = &control});
      const std::int64_t first = alone ? m.rows / 2 : m.rows;
      std::vector<double> top(direction.begin(), direction.begin() + first * m.columns),
          bottom(direction.begin() + first * m.columns, direction.end());
      orthogonalise(cpu, newton_schulz_set("simple"), first, m.columns, top);
      if (alone) orthogonalise(cpu, newton_schulz_set("simple"), m.rows - first, m.columns, bottom);
      top.insert(top.end(), bottom.begin(), bottom.end());
      ops::muon_step(cpu.stream, {.master = view(m.w),
                                  .direction = view(top),
                                  .factor = muon_factor(scale, m.rows, m.columns),
                                  .decay = 0.1,
                                  .control = &control});
    }
    t.losses.push_back(loss);
  }
  for (const test::GoldenMatrix& m : all) t.weights.insert(t.weights.end(), m.w.begin(), m.w.end());
  return t;
}

TEST(Muon, GoldenTrajectories) {
  for (const test::GoldenRun& golden : test::golden_runs()) {
    const Trajectory t = trajectory(golden.scale, golden.nesterov);
    EXPECT_LE(distance(t.losses, golden.losses), 1e-11) << golden.scale;
    EXPECT_LE(distance(t.weights, golden.last_weights), 1e-12) << golden.scale;
  }
}

TEST(Muon, PartsAloneAreAnotherOptimizer) {
  const test::GoldenRun& golden = test::golden_runs().front();
  EXPECT_GT(distance(trajectory(golden.scale, true, true).weights, golden.last_weights), 0.01);
}

/// Runs `f` with n numbers in f32 and in f64, for every copy type.
template <class F>
void with_sizes(const F& f) {
  for (const std::int64_t n : {1, 7, 64, 1000, 40001}) f(n);
}

std::vector<double> numbers(std::int64_t n, double phase) {
  std::vector<double> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(std::sin(0.37 * static_cast<double>(i) + phase));
  return x;
}

std::vector<float> narrow(const std::vector<double>& x) {
  return {x.begin(), x.end()};
}

TensorView view(std::vector<float>& values) {
  return {values.data(), DType::f32, {std::ssize(values)}};
}

// Three roundings of terms below 2.
TEST(Muon, PartsFollowTheReference) {
  Cpu cpu;
  const ops::StepControl control{.learning_rate = 0.1, .apply = 1, .gradient_factor = 0.7};
  with_sizes([&](std::int64_t n) {
    std::vector<double> g = numbers(n, 0), m = numbers(n, 1), u(g.size()), w = numbers(n, 2);
    std::vector<float> g32 = narrow(g), m32 = narrow(m), u32(g.size()), w32 = narrow(w);
    std::vector<bf16> copy(g.size());
    const TensorView copies{copy.data(), DType::bf16, {n}};
    for (const bool nesterov : {true, false}) {
      ops::muon_momentum(cpu.stream, {view(g32), view(m32), view(u32), 0.9, nesterov, &control});
      ref::muon_momentum({view(g), view(m), view(u), 0.9, nesterov, &control});
      ops::muon_step(cpu.stream, {view(w32), view(u32), copies, 0.5, 3, 0.2, &control});
      ref::muon_step({view(w), view(u), {}, 0.5, 3, 0.2, &control});
    }
    EXPECT_LE(distance({m32.begin(), m32.end()}, m), 16 * 0x1p-24) << n;
    EXPECT_LE(distance({w32.begin(), w32.end()}, w), 16 * 0x1p-24) << n;
    for (std::size_t i = 0; i < copy.size(); ++i)
      ASSERT_EQ(static_cast<float>(copy[i]), static_cast<float>(bf16(w32[i]))) << i;
  });
}

TEST(Muon, SkippedStepsWriteNothing) {
  Cpu cpu;
  const ops::StepControl control{.learning_rate = NAN, .apply = 0, .gradient_factor = NAN};
  std::vector<double> g = numbers(99, 0), m = numbers(99, 1), u = m, w = numbers(99, 2);
  const std::vector<double> before = m, weights = w;
  ops::muon_momentum(cpu.stream, {view(g), view(m), view(u), 0.9, true, &control});
  ops::muon_step(cpu.stream, {view(w), view(u), {}, 1, 1, 0, &control});
  EXPECT_EQ(m, before);
  EXPECT_EQ(u, before);
  EXPECT_EQ(w, weights);
}

TEST(Muon, ChoosesHiddenMatrices) {
  Parameter p{.name = "w", .shape = {4, 6}};
  EXPECT_FALSE(is_matrix({}, p));
  p.use = Use::hidden;
  EXPECT_TRUE(is_matrix({}, p));
  p.use = Use::adapter;
  EXPECT_FALSE(is_matrix({}, p));
  EXPECT_TRUE(is_matrix({.adapters = true}, p));
  auto own = std::make_shared<SettingsOf<MuonSettings>>();
  own->value.adapters = true;
  EXPECT_FALSE(muon_rule().keeps({.own = own}, 1, p));
  EXPECT_TRUE(muon_rule().keeps({}, 1, p));
  EXPECT_TRUE(muon_rule().keeps({.own = own}, 0, p));
}

}  // namespace
}  // namespace choir
