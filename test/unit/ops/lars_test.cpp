#include "kernels/update/lars.hpp"

#include "kernels/update/lars.hpp"
#include "test/support/op_test.hpp"

namespace choir {
namespace {

struct LarsState {
  HostTensor master, gradient, velocity, copy;
  ops::StepControl control{.learning_rate = 1e-2, .apply = 1, .gradient_factor = 0.7};
  double ratio[2] = {0.3, 0.05};
  LarsState(DType dtype, std::int64_t n, DType copy_type)
      : master(HostTensor::normal(dtype, {n}, 1)),
        gradient(HostTensor::normal(dtype, {n}, 2)),
        velocity(HostTensor::normal(dtype, {n}, 3, 0.1)) {
    if (copy_type != DType::f32) copy = HostTensor(copy_type, {n});
  }
  ops::Lars args() {
    ops::Lars a;
    a.master = master, a.gradient = gradient, a.velocity = velocity, a.copy = copy;
    a.control = &control, a.ratio = ratio, a.scale = 0.5;
    return a;
  }
};

double squares(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return sum;
}

/// Three steps of one tensor whose sums of squares are in two chunks; a tensor without a ratio is
/// updated with nullptr.
std::vector<double> three_steps(std::vector<double> w, double (*gradient)(double), bool matrix) {
  CpuBench cpu;
  const auto n = static_cast<std::int64_t>(w.size());
  std::vector<double> v(w.size(), 0);
  const auto view = [n](std::vector<double>& x) { return TensorView{x.data(), DType::f64, {n}}; };
  const double rates[] = {0.5, 1, 0.25};
  for (int t = 0; t < 3; ++t) {
    std::vector<double> g(w.size());
    for (std::size_t i = 0; i < g.size(); ++i)
      g[i] = gradient(1.0 + static_cast<double>(i) + 3 * t);
    // The gradients are twice as large, as with a loss scale.
    const ops::StepControl control{.learning_rate = rates[t], .apply = 1, .gradient_factor = 0.5};
    for (double& value : g) value *= 2;
    std::vector<double> weights{0.25 * squares(w), 0.75 * squares(w)}, gradients{squares(g), 0};
    std::int64_t begins[] = {0, 2};
    double ratio[2] = {};
    ops::trust_ratios(cpu.stream, {.weight_sums = {weights.data(), DType::f64, {2}},
                                   .gradient_sums = {gradients.data(), DType::f64, {2}},
                                   .begins = {begins, DType::i64, {2}},
                                   .ratios = {ratio, DType::f64, {2}},
                                   .coefficient = 0.02,
                                   .decay = 0.01,
                                   .epsilon = 1e-30,
                                   .control = &control});
    ops::lars(cpu.stream, {.master = view(w),
                           .gradient = view(g),
                           .velocity = view(v),
                           .momentum = 0.9,
                           .ratio = matrix ? ratio : nullptr,
                           .control = &control});
  }
  w.insert(w.end(), v.begin(), v.end());
  return w;
}

// Algorithm 1 of the paper, computed by a program in another language: eta 0.02, beta 0.01, m 0.9;
// rates 0.5, 1, 0.25; gradients sin(1 + i + 3 t). The second tensor, a bias without ratio and
// decay, has gradients cos.
TEST(Lars, GoldenSteps) {
  const std::vector<double> matrix = three_steps(
      {0.5, -1.25, 2.0, 0.125}, [](double x) { return std::sin(x); }, true);
  const double expected[] = {0.5049168953068631,     -1.236011526181223,    2.005709065217167,
                             0.12101254600543983,    -0.005839646990891285, -0.009089228471884613,
                             -0.0019769071831881885, 0.005241656987616873};
  for (std::size_t i = 0; i < matrix.size(); ++i) EXPECT_NEAR(matrix[i], expected[i], 1e-15) << i;
  const std::vector<double> bias = three_steps(
      {0.25, -0.75}, [](double x) { return std::cos(x); }, false);
  const double of_bias[] = {0.5713376916037071, -0.6887041804065985, -0.18098126131482797,
                            0.05038148966315756};
  for (std::size_t i = 0; i < bias.size(); ++i) EXPECT_NEAR(bias[i], of_bias[i], 1e-15) << i;
}

// A weight that is zero is updated by momentum alone; a weight without a gradient still decays.
TEST(Lars, RatiosOfZeroWeightsAndZeroGradients) {
  CpuBench cpu;
  double weights[] = {0, 4, 4}, gradients[] = {9, 0, 9}, ratios[6] = {};
  std::int64_t begins[] = {0, 1, 2, 3};
  const ops::StepControl control{.apply = 1, .gradient_factor = 1};
  ops::trust_ratios(cpu.stream, {.weight_sums = {weights, DType::f64, {3}},
                                 .gradient_sums = {gradients, DType::f64, {3}},
                                 .begins = {begins, DType::i64, {4}},
                                 .ratios = {ratios, DType::f64, {6}},
                                 .coefficient = 0.1,
                                 .decay = 0.5,
                                 .epsilon = 0.25,
                                 .control = &control});
  const double without = 0.1 * 2 / (0.5 * 2 + 0.25), with = 0.1 * 2 / (3 + 0.5 * 2 + 0.25);
  const double expected[] = {1, 0, without, 0.5 * without, with, 0.5 * with};
  for (int i = 0; i < 6; ++i) EXPECT_DOUBLE_EQ(ratios[i], expected[i]) << i;
}

// A gradient that is zero except for rounding errors differs from layout to layout. The two steps
// differ by no more than |w| * coefficient times the two norms over epsilon; decay, which both
// have, differs by an equally small part of itself.
TEST(Lars, RoundingErrorsBecomeNoSteps) {
  constexpr double kNoise = 1e-17, kWeight = 2, kCoefficient = 0.02, kEpsilon = 1e-8;
  for (const double decay : {0.0, 0.01}) {
    CpuBench cpu;
    double weights[] = {kWeight * kWeight, kWeight * kWeight, kWeight * kWeight};
    double gradients[] = {0, kNoise * kNoise, 9 * kNoise * kNoise}, ratios[6] = {};
    std::int64_t begins[] = {0, 1, 2, 3};
    const ops::StepControl control{.apply = 1, .gradient_factor = 1};
    ops::trust_ratios(cpu.stream, {.weight_sums = {weights, DType::f64, {3}},
                                   .gradient_sums = {gradients, DType::f64, {3}},
                                   .begins = {begins, DType::i64, {4}},
                                   .ratios = {ratios, DType::f64, {6}},
                                   .coefficient = kCoefficient,
                                   .decay = decay,
                                   .control = &control});
    // Steps along the noise: with noise 0, d, and 3 d in the opposite direction.
    const double along[] = {0, ratios[2] * kNoise, -ratios[4] * 3 * kNoise};
    const double most = kWeight * kCoefficient * 4 * kNoise / kEpsilon;
    const double decays = kWeight * ratios[1];
    for (const int a : {0, 1, 2})
      for (const int b : {0, 1, 2}) {
        SCOPED_TRACE(fmt::format("decay {}, gradients {} and {}", decay, a, b));
        EXPECT_LE(std::abs(along[a] - along[b]), most);
        EXPECT_LE(kWeight * std::abs(ratios[2 * a + 1] - ratios[2 * b + 1]),
                  decays * 4 * kNoise / kEpsilon);
      }
  }
}

TEST(Lars, FollowsTheReference) {
  for (const DType dtype : {DType::f64, DType::f32})
    for (const std::int64_t n : {1, 7, 16, 65, 20001})
      for (const DType copy : {DType::f32, DType::bf16, DType::f16}) {
        SCOPED_TRACE(fmt::format("{} n {} copy {}", name_of(dtype), n, name_of(copy)));
        CpuBench cpu;
        LarsState fast(dtype, n, copy), exact = fast;
        for (HostTensor* x : {&exact.master, &exact.gradient, &exact.velocity})
          *x = x->to(DType::f64);
        ops::lars(cpu.stream, fast.args());
        ref::lars(exact.args());
        const double u = unit_roundoff(dtype);  // four roundings of terms below 5
        expect_close(fast.velocity, exact.velocity, 4 * u, 8 * u, "velocity");
        expect_close(fast.master, exact.master, 4 * u, 8 * u, "master");
        const HostTensor nearest = fast.master.to(DType::f32).to(copy);
        for (std::int64_t i = 0; i < fast.copy.count(); ++i)
          ASSERT_EQ(fast.copy[i], nearest[i]) << i;
        EXPECT_TRUE(fast.master.guard_intact() && fast.velocity.guard_intact());
      }
}

TEST(Lars, WritesNothingWhenTheStepIsNotApplied) {
  CpuBench cpu;
  LarsState s(DType::f32, 100, DType::bf16), before = s;
  s.control.apply = 0;
  ops::lars(cpu.stream, s.args());
  EXPECT_TRUE(s.master.same_bits(before.master) && s.velocity.same_bits(before.velocity));
}

TEST(Lars, RefusesWhatDoesNotFit) {
  CpuBench cpu;
  LarsState s(DType::f32, 10, DType::bf16);
  ops::Lars args = s.args();
  args.control = nullptr;
  EXPECT_THROW(ops::lars(cpu.stream, args), Error);
  args = s.args();
  args.velocity = args.velocity.slice(0, 9);
  EXPECT_THROW(ops::lars(cpu.stream, args), Error);
  LarsState half(DType::bf16, 10, DType::f32);
  EXPECT_THROW(ops::lars(cpu.stream, half.args()), Error);
}

}  // namespace
}  // namespace choir
