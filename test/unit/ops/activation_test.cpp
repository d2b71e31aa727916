#include "test/support/activation_case.hpp"
#include "test/support/gradcheck.hpp"

namespace choir::test {
namespace {

using ops::Activation;
constexpr Activation kAll[] = {Activation::gelu,   Activation::gelu_tanh, Activation::relu,
                               Activation::swiglu, Activation::silu,      Activation::geglu};

TEST(Activation, MatchesTheReferenceForRaggedShapesAndAllTypes) {
  CpuDevice device;
  for (const DType dtype : kElementTypes)
    for (const Activation kind : kAll)
      for (const std::int64_t width : {1, 3, 7, 16, 17, 63, 65, 128, 1000})
        for (const std::int64_t rows : {1, 3, 40})
          ActivationCase{kind, dtype, rows, width}.check(device);
}

TEST(Activation, GoldenValues) {
  // Closed forms from tables of the normal distribution: Phi(1) = 0.841344746068543.
  CpuBench cpu;
  HostTensor x(DType::f64, {4}), y(DType::f64, {4});
  x.set(0, 1), x.set(1, -1), x.set(2, 0), x.set(3, 2);
  ops::activation_forward(cpu.stream, Activation::gelu, x, y);
  EXPECT_NEAR(y[0], 0.841344746068543, 1e-15);
  EXPECT_NEAR(y[1], -0.158655253931457, 1e-15);
  EXPECT_EQ(y[2], 0);
  EXPECT_NEAR(y[3], 2 * 0.977249868051821, 2e-15);
}

// x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 at 1 and -1, times up; the erf form is 1.5e-4
// away.
TEST(Activation, GegluHasTheTanhForm) {
  CpuBench cpu;
  HostTensor x(DType::f64, {1, 4}), y(DType::f64, {1, 2});
  x.set(0, 1), x.set(1, -1), x.set(2, 3), x.set(3, 2);
  ops::activation_forward(cpu.stream, Activation::geglu, x, y);
  const double t = std::tanh(std::sqrt(2 / M_PI) * 1.044715);
  EXPECT_NEAR(y[0], 3 * 0.5 * (1 + t), 1e-14);
  EXPECT_NEAR(y[1], 2 * -0.5 * (1 - t), 1e-14);
}

TEST(Activation, FarTailsAreFiniteAndRight) {
  CpuBench cpu;
  for (const Activation kind : {Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
    HostTensor x(DType::f32, {4}), y(DType::f32, {4}), d(DType::f32, {4});
    const HostTensor one = HostTensor::filled(DType::f32, {4}, 1);
    x.set(0, 1e4), x.set(1, -1e4), x.set(2, 1e20), x.set(3, -1e20);
    ops::activation_forward(cpu.stream, kind, x, y);
    ops::activation_backward(cpu.stream, kind, x, one, d);
    for (const int i : {0, 2}) {
      EXPECT_EQ(y[i], x[i]);
      EXPECT_EQ(d[i], 1);
    }
    for (const int i : {1, 3}) {
      EXPECT_EQ(y[i], 0);
      EXPECT_EQ(d[i], 0);
    }
  }
}

TEST(Activation, GradientsAgreeWithFiniteDifferences) {
  for (const Activation kind : kAll) {
    CpuBench cpu;
    const std::int64_t in_width = 17 * ops::activation_inputs(kind);
    HostTensor x = HostTensor::normal(DType::f64, {3, in_width}, 1, 1.5), y(DType::f64, {3, 17});
    const HostTensor d_y = HostTensor::normal(DType::f64, {3, 17}, 2);
    HostTensor d_x(DType::f64, {3, in_width});
    const auto loss = [&] {
      ops::activation_forward(cpu.stream, kind, x, y);
      return dot(y, d_y);
    };
    ops::activation_backward(cpu.stream, kind, x, d_y, d_x);
    const std::string name = fmt::format("activation {}", static_cast<int>(kind));
    expect_gradient(d_x, x, loss, name);
    expect_directional(d_x, x, 3, loss, name);
  }
}

TEST(Activation, BackwardRunsInPlace) {
  for (const Activation kind :
       {Activation::gelu, Activation::gelu_tanh, Activation::relu, Activation::silu}) {
    CpuBench cpu;
    const HostTensor x = HostTensor::normal(DType::bf16, {5, 33}, 1);
    HostTensor d = HostTensor::normal(DType::bf16, {5, 33}, 2), apart(DType::bf16, {5, 33});
    ops::activation_backward(cpu.stream, kind, x, d, apart);
    ops::activation_backward(cpu.stream, kind, x, d, d);
    EXPECT_TRUE(apart.same_bits(d));
  }
}

TEST(Activation, RefusesWrongWidths) {
  CpuBench cpu;
  const HostTensor x(DType::f32, {2, 6}), y(DType::f32, {2, 6});
  EXPECT_THROW(ops::activation_forward(cpu.stream, Activation::swiglu, x, y), Error);
  EXPECT_THROW(ops::activation_forward(cpu.stream, Activation::geglu, x, y), Error);
}

}  // namespace
}  // namespace choir::test
