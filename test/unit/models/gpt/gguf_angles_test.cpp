// Tests of Llama 3's rotary angles in the format of llama.cpp: written and read again.
#include "src/models/gpt/foreign/gguf.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace choir {
namespace {

constexpr double kTheta = 500000;
constexpr std::int64_t kWidth = 128;

ops::RopeScaling llama31() {
  return {
      .kind = ops::RopeScaling::Kind::llama3, .factor = 8, .original = 8192, .low = 1, .high = 4};
}

// A wavelength of more than 8192 positions is stretched eightfold, one of less than 2048 is not:
// theta^(-i/64) is 2 pi / 2048 at i = 28.2, 2 pi / 8192 at 35.
TEST(GgufAngles, DivisorsOfLlama31) {
  const std::vector<float> divisors = gguf_divisors(kTheta, llama31(), kWidth);
  ASSERT_EQ(divisors.size(), 64u);
  for (int i = 0; i <= 28; ++i) EXPECT_EQ(divisors[static_cast<std::size_t>(i)], 1) << i;
  for (int i = 35; i < 64; ++i) EXPECT_EQ(divisors[static_cast<std::size_t>(i)], 8) << i;
  // i = 30: wavelength 2 pi 500000^(30/64) = 2948.27; s = (8192 / 2948.27 - 1) / 3 = 0.592862.
  const double wavelength = 2 * M_PI * std::pow(kTheta, 30.0 / 64), s = (8192 / wavelength - 1) / 3;
  EXPECT_NEAR(divisors[30], 1 / ((1 - s) / 8 + s), 1e-6);
  EXPECT_TRUE(gguf_divisors(kTheta, {}, kWidth).empty());
}

// Heads of 64, as Llama 3.2 1B has them, have three pairs between the two wavelengths.
TEST(GgufAngles, AndBack) {
  for (const std::int64_t width : {std::int64_t{64}, kWidth})
    for (const double original : {4096.0, 8192.0})
      for (const double factor : {8.0, 32.0}) {
        ops::RopeScaling scaling = llama31();
        scaling.original = original, scaling.factor = factor;
        const auto found = scaling_of_divisors(kTheta, gguf_divisors(kTheta, scaling, width));
        ASSERT_TRUE(found.has_value());
        EXPECT_EQ(found->factor, factor);
        EXPECT_EQ(found->original, original);
        EXPECT_EQ(found->low, 1);
        EXPECT_EQ(found->high, 4);
      }
}

// Only ratios matter: (8192, 2, 8) are (4096, 1, 4).
TEST(GgufAngles, RatiosOnly) {
  ops::RopeScaling scaling = llama31();
  scaling.low = 2, scaling.high = 8;
  const auto found = scaling_of_divisors(kTheta, gguf_divisors(kTheta, scaling, kWidth));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->original, 4096);
  EXPECT_EQ(found->high, 4);
}

// With few pairs the settings are not unique, but the angles are: heads of 4 have two pairs.
TEST(GgufAngles, FewPairs) {
  for (const std::int64_t width : {2, 4, 6, 8})
    for (const double theta : {10000.0, kTheta})
      for (const double original : {16.0, 100.0, 8192.0})
        for (const double high : {1.5, 4.0, 16.0}) {
          ops::RopeScaling scaling = llama31();
          scaling.original = original, scaling.high = high;
          const std::vector<float> divisors = gguf_divisors(theta, scaling, width);
          if (std::all_of(divisors.begin(), divisors.end(), [](float d) { return d == 1; }))
            continue;  // no scaling at all
          const auto found = scaling_of_divisors(theta, divisors);
          ASSERT_TRUE(found.has_value()) << width << " " << theta << " " << original << " " << high;
          const std::vector<float> again = gguf_divisors(theta, *found, width);
          for (std::size_t i = 0; i < divisors.size(); ++i)
            EXPECT_NEAR(again[i] / divisors[i], 1, 1e-5);
        }
}

TEST(GgufAngles, OtherFormsAreNone) {
  EXPECT_FALSE(scaling_of_divisors(kTheta, {}));
  EXPECT_FALSE(scaling_of_divisors(kTheta, std::vector<float>(64, 1.0f)));
  std::vector<float> bent = gguf_divisors(kTheta, llama31(), kWidth);
  bent[31] *= 1.01f;
  EXPECT_FALSE(scaling_of_divisors(kTheta, bent));
  std::vector<float> other(64);
  for (std::size_t i = 0; i < other.size(); ++i) other[i] = 1 + static_cast<float>(i) / 8;
  EXPECT_FALSE(scaling_of_divisors(kTheta, other)) << "LongRoPE, say";
  for (const float lie : {NAN, INFINITY, 0.0f, -8.0f}) {
    std::vector<float> lying = gguf_divisors(kTheta, llama31(), kWidth);
    lying[40] = lie;
    EXPECT_FALSE(scaling_of_divisors(kTheta, lying)) << lie;
  }
}

TEST(GgufTypes, RowsThatAreNoWholeBlocksHaveAWiderType) {
  const auto part = [](const char* name, Shape shape) {
    TensorPart made;
    made.name = name;
    made.shape = shape;
    return made;
  };
  using Matrices = std::map<Encoding, std::int64_t>;
  const std::vector<TensorPart> small{part("a.weight", {8, 16}), part("norm.weight", {16})};
  EXPECT_EQ(gguf_matrices(small, Encoding::q8_0, true), (Matrices{{Encoding::f32, 1}}));
  EXPECT_EQ(gguf_stored_type({{Encoding::f32, 1}}, Encoding::q8_0), Encoding::f32);
  const std::vector<TensorPart> mixed{part("a.weight", {8, 16}), part("b.weight", {8, 64}),
                                      part("c.weight", {8, 96}),
                                      part("position_embd.weight", {8, 64})};
  EXPECT_EQ(gguf_matrices(mixed, Encoding::q8_0, true),
            (Matrices{{Encoding::f32, 1}, {Encoding::q8_0, 2}}));
  EXPECT_EQ(gguf_stored_type({{Encoding::f32, 3}, {Encoding::q8_0, 1}}, Encoding::q8_0),
            Encoding::q8_0);
  EXPECT_EQ(gguf_matrices(mixed, Encoding::bf16, true), (Matrices{{Encoding::bf16, 3}}));
  EXPECT_EQ(gguf_matrices(mixed, Encoding::q4_k, true),
            (Matrices{{Encoding::f32, 1}, {Encoding::q5_0, 2}}));
  EXPECT_EQ(gguf_stored_type({{Encoding::f32, 1}, {Encoding::q5_0, 2}}, Encoding::q4_k),
            Encoding::q5_0);
  const std::vector<TensorPart> wide{part("a.weight", {8, 512}), part("b.weight", {8, 64})};
  EXPECT_EQ(gguf_matrices(wide, Encoding::q4_k, true),
            (Matrices{{Encoding::q5_0, 1}, {Encoding::q4_k, 1}}));
  const std::vector<TensorPart> ends{part("token_embd.weight", {8, 512}),
                                     part("output.weight", {8, 512})};
  EXPECT_EQ(gguf_encoding(ends[0], Encoding::q4_k, true), Encoding::q6_k);
  EXPECT_EQ(gguf_encoding(ends[0], Encoding::q4_k, false), Encoding::q4_k);
  EXPECT_EQ(gguf_encoding(ends[1], Encoding::q4_k, false), Encoding::q6_k);
  EXPECT_EQ(gguf_encoding(ends[1], Encoding::q8_0, false), Encoding::q8_0);
  EXPECT_EQ(gguf_encoding(part("output.weight", {8, 96}), Encoding::q4_k, false), Encoding::q8_0);
  EXPECT_EQ(gguf_encoding(part("output.weight", {8, 90}), Encoding::q4_k, false), Encoding::f32);
}

}  // namespace
}  // namespace choir
