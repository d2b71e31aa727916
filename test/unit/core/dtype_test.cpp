#include "choir/core/dtype.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "choir/core/error.hpp"

namespace choir {
namespace {

float through_bf16(float x) {
  return static_cast<float>(bf16(x));
}

TEST(Bf16, TiesGoToEven) {
  // 8 significant bits: around 1 the spacing is 2^-7.
  EXPECT_EQ(through_bf16(1.0f + 0x1p-8f), 1.0f);                // tie, 1 is even
  EXPECT_EQ(through_bf16(1.0f + 3 * 0x1p-8f), 1.0f + 0x1p-6f);  // tie, up to even
  EXPECT_EQ(through_bf16(1.0f + 0x1p-8f + 0x1p-20f), 1.0f + 0x1p-7f);
  EXPECT_EQ(through_bf16(1.0f + 3 * 0x1p-8f - 0x1p-20f), 1.0f + 0x1p-7f);
  EXPECT_EQ(through_bf16(-1.0f - 0x1p-8f), -1.0f);
}

TEST(Bf16, EveryValueOfTheFormatIsExact) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    bf16 value;
    value.bits = static_cast<std::uint16_t>(bits);
    const float wide = static_cast<float>(value);
    if (std::isnan(wide))
      EXPECT_TRUE(std::isnan(through_bf16(wide))) << bits;
    else
      EXPECT_EQ(bf16(wide).bits, bits);
  }
}

TEST(Bf16, RoundsToTheNearerNeighbour) {
  std::uint32_t x = 1;
  for (int i = 0; i < 100000; ++i) {
    x = x * 1664525u + 1013904223u;
    const auto value = std::bit_cast<float>(x);
    if (!std::isfinite(value) || std::abs(value) > 3e38f) continue;
    const auto below = std::bit_cast<float>(x & 0xffff0000u);
    const auto above = std::bit_cast<float>((x & 0xffff0000u) + 0x10000u);
    const double nearest =
        std::min(std::abs(double{value} - below), std::abs(double{above} - value));
    EXPECT_EQ(std::abs(double{through_bf16(value)} - value), nearest) << value;
  }
}

TEST(Bf16, SpecialValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(through_bf16(kInfinity), kInfinity);
  EXPECT_EQ(through_bf16(-kInfinity), -kInfinity);
  EXPECT_EQ(through_bf16(std::numeric_limits<float>::max()), kInfinity);
  EXPECT_TRUE(std::signbit(through_bf16(-0.0f)));
  // A NaN whose payload is only in the lower half must not become infinity.
  EXPECT_TRUE(std::isnan(through_bf16(std::bit_cast<float>(0x7f800001u))));
  EXPECT_TRUE(std::isnan(through_bf16(std::bit_cast<float>(0xffffffffu))));
}

/// The value of a finite half by the formula of the standard; 0x7c00 counts as 65536, the next
/// value.
double value_of(std::uint32_t half) {
  const int exponent = static_cast<int>((half >> 10) & 31u);
  const auto fraction = static_cast<double>(half & 0x3ffu);
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return half & 0x8000u ? -magnitude : magnitude;
}

/// Converts with the constructor, which may be an instruction, and with integers.
void expect_f16(float x, std::uint32_t bits) {
  ASSERT_EQ(f16(x).bits, bits) << x;
  ASSERT_EQ(f16::round(x), bits) << x;
}

TEST(F16, EveryValueOfTheFormatIsExact) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    f16 half;
    half.bits = static_cast<std::uint16_t>(bits);
    const auto wide = static_cast<float>(half);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(wide),
              std::bit_cast<std::uint32_t>(f16::widen(half.bits)));
    ASSERT_EQ(std::signbit(wide), (bits & 0x8000u) != 0);
    if ((bits & 0x7fffu) > 0x7c00u) {
      ASSERT_TRUE(std::isnan(wide)) << bits;
      expect_f16(wide, bits | 0x0200u);  // quiet
    } else {
      if ((bits & 0x7fffu) == 0x7c00u)
        ASSERT_TRUE(std::isinf(wide));
      else
        ASSERT_EQ(wide, value_of(bits)) << bits;
      expect_f16(wide, bits);
    }
  }
}

TEST(F16, EveryBoundaryOfRoundingIsInTheMiddleAndTiesGoToEven) {
  // Rounding is monotonic, so the floats next to every half-way point decide about all others.
  for (const std::uint32_t sign : {0u, 0x8000u})
    for (std::uint32_t bits = 0; bits < 0x7c00u; ++bits) {
      const std::uint32_t low = sign | bits, high = low + 1;
      const double half_way = (value_of(low) + value_of(high)) / 2;
      const auto tie = static_cast<float>(half_way);
      ASSERT_EQ(tie, half_way);
      expect_f16(tie, low % 2 == 0 ? low : high);
      expect_f16(std::nextafter(tie, 0.0f), low);
      expect_f16(std::nextafter(tie, sign ? -INFINITY : INFINITY), high);
    }
}

TEST(F16, OverflowsToInfinityAndUnderflowsToZero) {
  expect_f16(65519.996f, 0x7bffu);
  expect_f16(65520.0f, 0x7c00u);
  expect_f16(-65520.0f, 0xfc00u);
  expect_f16(std::numeric_limits<float>::max(), 0x7c00u);
  expect_f16(std::numeric_limits<float>::infinity(), 0x7c00u);
  expect_f16(0x1p-25f, 0);
  expect_f16(-0x1p-25f, 0x8000u);
  expect_f16(std::numeric_limits<float>::denorm_min(), 0);
  expect_f16(-std::numeric_limits<float>::min(), 0x8000u);
  // A NaN whose payload is only in the lower bits must not become infinity.
  expect_f16(std::bit_cast<float>(0x7f800001u), 0x7e00u);
  expect_f16(std::bit_cast<float>(0xffffffffu), 0xffffu);
}

TEST(DType, NamesAndSizesAgree) {
  const std::pair<const char*, std::size_t> kAll[] = {{"f64", 8}, {"f32", 4}, {"bf16", 2},
                                                      {"f16", 2}, {"i64", 8}, {"i32", 4},
                                                      {"u16", 2}, {"u8", 1}};
  for (const auto& [name, bytes] : kAll) {
    EXPECT_EQ(name_of(dtype_of(name)), name);
    EXPECT_EQ(size_of(dtype_of(name)), bytes);
  }
  EXPECT_THROW(dtype_of("float"), Error);
}

}  // namespace
}  // namespace choir
