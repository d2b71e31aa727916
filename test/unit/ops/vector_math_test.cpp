#include "kernels/cpu/vector_math.hpp"

#include <bit>

#include "test/support/op_test.hpp"

namespace choir {
namespace {

using cpu::Floats;

/// Largest error in ulp over every `stride`-th float of both signs between the given magnitudes.
template <class Fast, class Exact>
void expect_ulps(const char* name, Fast fast, Exact exact, float low, float high, double limit,
                 std::uint32_t stride = 2053) {
  double worst = 0;
  float where = 0;
  constexpr int kLanes = cpu::kLanes<float>;
  const auto first = std::bit_cast<std::uint32_t>(low), last = std::bit_cast<std::uint32_t>(high);
  for (const float sign : {1.0f, -1.0f})
    for (std::uint64_t bits = first; bits <= last; bits += stride * kLanes) {
      Floats x;
      for (int i = 0; i < kLanes; ++i)
        x[i] = sign * std::bit_cast<float>(static_cast<std::uint32_t>(bits) +
                                           stride * static_cast<unsigned>(i));
      const Floats y = fast(x);
      for (int i = 0; i < kLanes; ++i) {
        const double error = ulps(y[i], exact(static_cast<double>(x[i])));
        if (!(error <= worst)) worst = error, where = x[i];
      }
    }
  EXPECT_LE(worst, limit) << name << " is worst at " << where;
}

TEST(VectorMath, ExpIsWithinTwoUlpsEverywhere) {
  expect_ulps(
      "exp", [](Floats x) { return cpu::exp(x); }, [](double x) { return std::exp(x); }, 1e-8f,
      120.0f, 2.0);
}

TEST(VectorMath, LogIsWithinTwoUlpsEverywhere) {
  expect_ulps(
      "log", [](Floats x) { return cpu::log(cpu::abs(x)); },
      [](double x) { return std::log(std::fabs(x)); }, 1e-44f, 3e38f, 2.0, 8009);
  expect_ulps(
      "log near 1", [](Floats x) { return cpu::log(cpu::abs(x)); },
      [](double x) { return std::log(std::fabs(x)); }, 0.5f, 2.0f, 2.0, 61);
}

TEST(VectorMath, TanhIsWithinTwoUlpsEverywhere) {
  expect_ulps(
      "tanh", [](Floats x) { return cpu::tanh(x); }, [](double x) { return std::tanh(x); }, 1e-20f,
      100.0f, 2.0);
}

TEST(VectorMath, ErfIsWithinTwoUlpsEverywhere) {
  expect_ulps(
      "erf", [](Floats x) { return cpu::erf(x); }, [](double x) { return std::erf(x); }, 1e-20f,
      20.0f, 2.0);
}

TEST(VectorMath, SigmoidIsWithinFourUlps) {
  // exp 2, one sum and one quotient 1/2 each; 1 + e^-x passes the error of exp on: 3 + rounding.
  expect_ulps(
      "sigmoid", [](Floats x) { return cpu::sigmoid(x); },
      [](double x) { return 1 / (1 + std::exp(-x)); }, 1e-10f, 85.0f, 4.0);
}

TEST(VectorMath, NormalTailKeepsRelativeAccuracy) {
  // x^2 / 2 is rounded once, so exp of it has an error of x^2/2 half ulps: 18 at 6; the rest is
  // below 6 ulp.
  expect_ulps(
      "normal", [](Floats x) { return cpu::normal(x).below; },
      [](double x) { return 0.5 * std::erfc(-x * M_SQRT1_2); }, 1e-10f, 6.0f, 24.0);
}

TEST(VectorMath, SpecialValuesAreThoseOfTheLibrary) {
  Floats x{};
  x[0] = INFINITY, x[1] = -INFINITY, x[2] = NAN, x[3] = -0.0f;
  EXPECT_EQ(cpu::exp(x)[0], INFINITY);
  EXPECT_EQ(cpu::exp(x)[1], 0.0f);
  EXPECT_TRUE(std::isnan(cpu::exp(x)[2]));
  EXPECT_EQ(cpu::exp(x)[3], 1.0f);
  EXPECT_EQ(cpu::log(x)[0], INFINITY);
  EXPECT_TRUE(std::isnan(cpu::log(x)[1]));
  EXPECT_TRUE(std::isnan(cpu::log(x)[2]));
  EXPECT_EQ(cpu::log(x)[3], -INFINITY);
  EXPECT_EQ(cpu::tanh(x)[0], 1.0f);
  EXPECT_EQ(cpu::tanh(x)[1], -1.0f);
  EXPECT_TRUE(std::isnan(cpu::tanh(x)[2]));
  EXPECT_EQ(cpu::erf(x)[0], 1.0f);
  EXPECT_EQ(cpu::erf(x)[1], -1.0f);
  EXPECT_TRUE(std::isnan(cpu::erf(x)[2]));
  EXPECT_EQ(cpu::sigmoid(x)[0], 1.0f);
  EXPECT_EQ(cpu::sigmoid(x)[1], 0.0f);
}

/// Floats of all exponents; 65521 is prime, so that all patterns of low bits occur.
template <class T>
void expect_the_scalar_rule() {
  constexpr int kLanes = cpu::kLanes<T>;
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 65521ull * kLanes) {
    Floats x;
    for (int i = 0; i < kLanes; ++i)
      x[i] = std::bit_cast<float>(
          static_cast<std::uint32_t>(bits + static_cast<unsigned>(i) * 0x8000u));
    T stored[kLanes], part[kLanes] = {};
    cpu::store(stored, x);
    cpu::store_part(part, x, kLanes - 1);
    const Floats back = cpu::load(stored), some = cpu::load_part(stored, kLanes - 1, -7.0f);
    for (int i = 0; i < kLanes; ++i) {
      ASSERT_EQ(stored[i].bits, T::round(x[i])) << x[i];
      ASSERT_EQ(part[i].bits, i < kLanes - 1 ? stored[i].bits : 0);
      ASSERT_TRUE(back[i] == static_cast<float>(stored[i]) || std::isnan(back[i]));
      ASSERT_TRUE(some[i] == (i < kLanes - 1 ? back[i] : -7.0f) || std::isnan(back[i]));
    }
  }
}

TEST(VectorMath, Bf16StoresRoundToNearestEvenLikeTheScalarRule) {
  expect_the_scalar_rule<bf16>();
}

TEST(VectorMath, F16StoresRoundToNearestEvenLikeTheScalarRule) {
  expect_the_scalar_rule<f16>();
}

template <class V>
void expect_every_half() {
  constexpr std::uint32_t kLanes = sizeof(V) / sizeof(float);
  for (std::uint32_t first = 0; first < 0x10000; first += kLanes) {
    f16 halves[kLanes], back[kLanes];
    for (std::uint32_t i = 0; i < kLanes; ++i)
      halves[i].bits = static_cast<std::uint16_t>(first + i);
    const V wide = load_f16<V>(halves);
    store_f16(back, wide);
    for (std::uint32_t i = 0; i < kLanes; ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(static_cast<float>(wide[i])),
                std::bit_cast<std::uint32_t>(f16::widen(halves[i].bits)));
      ASSERT_EQ(back[i].bits, f16::round(wide[i]));
    }
  }
}

TEST(VectorMath, F16VectorsOfEveryWidthHoldEveryHalf) {
  using Four = float __attribute__((vector_size(16)));
  using Eight = float __attribute__((vector_size(32)));
  using Sixteen = float __attribute__((vector_size(64)));
  expect_every_half<Four>();
  expect_every_half<Eight>();
  expect_every_half<Sixteen>();
}

}  // namespace
}  // namespace choir
