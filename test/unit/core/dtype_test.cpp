#include "choir/core/dtype.hpp"

#include <gtest/gtest.h>

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
