#include "src/store/encoding.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "test/unit/store/weights_fixture.hpp"

namespace choir {
namespace {

using test::bytes_of;
using test::from_hex;

template <class From>
std::int64_t converted(const std::vector<From>& from, Encoding from_encoding, std::string& to,
                       Encoding to_encoding) {
  const auto count = static_cast<std::int64_t>(from.size());
  to.assign(static_cast<std::size_t>(encoded_bytes(to_encoding, count)), '\0');
  return convert(reinterpret_cast<const std::byte*>(from.data()), from_encoding,
                 reinterpret_cast<std::byte*>(to.data()), to_encoding, count);
}

std::vector<float> decoded(const std::string& bytes, Encoding encoding, std::int64_t count) {
  std::vector<float> to(static_cast<std::size_t>(count));
  EXPECT_EQ(convert(reinterpret_cast<const std::byte*>(bytes.data()), encoding,
                    reinterpret_cast<std::byte*>(to.data()), Encoding::f32, count),
            -1);
  return to;
}

TEST(Encoding, NamesAndSizes) {
  EXPECT_EQ(name_of(Encoding::bf16), "BF16");
  EXPECT_EQ(encoding_of("F8_E4M3FNUZ"), Encoding::f8_e4m3fnuz);
  EXPECT_EQ(encoding_of("Q4_1"), Encoding::q4_1);
  EXPECT_EQ(encoding_of("f32"), std::nullopt);
  EXPECT_EQ(encoded_bytes(Encoding::q8_0, 64), 68);
  EXPECT_EQ(encoded_bytes(Encoding::q4_k, 512), 288);
  EXPECT_EQ(encoding_of("IQ4_XS"), Encoding::iq4_xs);
  EXPECT_EQ(encoded_bytes(Encoding::f6_e3m2, 8), 6);
  EXPECT_THROW(encoded_bytes(Encoding::q8_0, 40), Error);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32,
                            DType::u16, DType::u8})
    EXPECT_EQ(encoded_bytes(encoding_of(dtype), 1), static_cast<std::int64_t>(size_of(dtype)));
}

// The blocks that GGML itself encodes for these numbers.
TEST(Encoding, QuantisesAsGgmlDoes) {
  std::vector<float> ramp, sines;
  for (int i = 0; i < 32; ++i) {
    ramp.push_back((static_cast<float>(i) - 15.5f) / 10);
    sines.push_back(static_cast<float>(std::sin(i)));
  }
  std::string block;
  EXPECT_EQ(converted(ramp, Encoding::f32, block, Encoding::q8_0), -1);
  EXPECT_EQ(block,
            from_hex("40228189919aa2aab2bac3cbd3dbe3ecf4fc040c141d252d353d464e565e666f777f"));
  EXPECT_NEAR(decoded(block, Encoding::q8_0, 32)[31], 1.55, 0.007);
  EXPECT_EQ(converted(sines, Encoding::f32, block, Encoding::q8_0), -1);
  EXPECT_EQ(block,
            from_hex("0820006b7312a086dd537e34bb81bc357e53db86a113746aff958def617922ac83cd"));
  EXPECT_EQ(converted(std::vector<float>(32, 0), Encoding::f32, block, Encoding::q8_0), -1);
  EXPECT_EQ(block, std::string(34, '\0'));
}

TEST(Encoding, DequantisesBlocksOfFourBits) {
  std::string nibbles;  // element i is i % 16 in the lower half of the block, 15 - i % 16 above
  for (int i = 0; i < 16; ++i) nibbles += static_cast<char>(i | (15 - i) << 4);
  const auto q4_0 = decoded(bytes_of(f16(0.5f)) + nibbles, Encoding::q4_0, 32);
  const auto q4_1 = decoded(bytes_of(f16(0.5f)) + bytes_of(f16(-3)) + nibbles, Encoding::q4_1, 32);
  for (int i = 0; i < 16; ++i) {
    const auto at = static_cast<std::size_t>(i);
    EXPECT_EQ(q4_0[at], 0.5f * static_cast<float>(i - 8));
    EXPECT_EQ(q4_0[at + 16], 0.5f * static_cast<float>(7 - i));
    EXPECT_EQ(q4_1[at], 0.5f * static_cast<float>(i) - 3);
    EXPECT_EQ(q4_1[at + 16], 0.5f * static_cast<float>(15 - i) - 3);
  }
}

// 1 + 2^-8 + 2^-40 is nearer to the bf16 above; rounded to a float first, it would be a tie.
TEST(Encoding, DoublesAreRoundedOnce) {
  std::string to;
  const double above = 1 + 0x1p-8 + 0x1p-40, below = 1 + 3 * 0x1p-8 - 0x1p-40;
  EXPECT_EQ(
      converted<double>({above, -above, below, 1 + 0x1p-8}, Encoding::f64, to, Encoding::bf16), -1);
  EXPECT_EQ(decoded(to, Encoding::bf16, 4),
            (std::vector<float>{1 + 0x1p-7f, -1 - 0x1p-7f, 1 + 0x1p-7f, 1}));
  EXPECT_EQ(
      converted<double>({1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-11}, Encoding::f64, to, Encoding::f16),
      -1);
  EXPECT_EQ(decoded(to, Encoding::f16, 2), (std::vector<float>{1 + 0x1p-10f, 1}));
}

TEST(Encoding, FindsTheFirstThatDoesNotFit) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::string to;
  EXPECT_EQ(converted<float>({1, kInfinity, 70000, 80000}, Encoding::f32, to, Encoding::f16), 2);
  EXPECT_EQ(converted<float>({1, 3.4e38f}, Encoding::f32, to, Encoding::bf16), 1);
  EXPECT_EQ(converted<double>({1, 2, 1e39}, Encoding::f64, to, Encoding::f32), 2);
  std::vector<float> block(32, 1);
  block[5] = kInfinity;
  EXPECT_EQ(converted(block, Encoding::f32, to, Encoding::q8_0), 5);
  block[5] = 1e9f;
  EXPECT_EQ(converted(block, Encoding::f32, to, Encoding::q8_0), 0);
  EXPECT_EQ(converted<std::int64_t>({0, 255, 256}, Encoding::i64, to, Encoding::u8), 2);
  EXPECT_EQ(converted<std::int64_t>({0, -1}, Encoding::i64, to, Encoding::u64), 1);
  EXPECT_EQ(converted<std::uint64_t>({1, ~std::uint64_t{0}}, Encoding::u64, to, Encoding::i64), 1);
  EXPECT_EQ(converted<std::int32_t>({1, 0, 2}, Encoding::i32, to, Encoding::boolean), 2);
  // The range extends beyond the first chunk of the conversion.
  std::vector<float> many(5000, 1);
  many[4999] = 1e6f;
  EXPECT_EQ(converted(many, Encoding::f32, to, Encoding::f16), 4999);
}

TEST(Encoding, NeverMixesRealsAndWholeNumbers) {
  EXPECT_TRUE(can_convert(Encoding::q4_0, Encoding::bf16));
  EXPECT_TRUE(can_convert(Encoding::boolean, Encoding::i64));
  EXPECT_TRUE(can_convert(Encoding::f8_e4m3, Encoding::f8_e4m3));
  EXPECT_FALSE(can_convert(Encoding::i64, Encoding::f64));
  EXPECT_FALSE(can_convert(Encoding::f32, Encoding::i32));
  EXPECT_FALSE(can_convert(Encoding::f32, Encoding::q4_0));
  EXPECT_FALSE(can_convert(Encoding::f8_e4m3, Encoding::f32));
  EXPECT_FALSE(can_convert(Encoding::c64, Encoding::f8_e4m3));
}

}  // namespace
}  // namespace choir
