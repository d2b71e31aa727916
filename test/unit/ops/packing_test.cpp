#include "kernels/packing/packing.hpp"

#include <numeric>

#include "choir/core/error.hpp"
#include "test/support/packing_case.hpp"

namespace choir::test {
namespace {

TEST(Packing, MatchesTheReference) {
  CpuDevice cpu;
  for (const int bits : {4, 8})
    for (const DType dtype : kElementTypes) {
      PackingCase{bits, dtype, 3, 5, 0, 5}.check(cpu);       // a whole matrix
      PackingCase{bits, dtype, 130, 6, 2, 3}.check(cpu);     // columns, in four groups of scales
      PackingCase{bits, dtype, 60, 9, 6, 3, 50}.check(cpu);  // a slice of them
    }
}

// The block of the sheet: bitsandbytes packed the values of the table times 2, and 48 equidistant
// numbers from -2 to 2.
TEST(Packing, TheBytesOfBitsAndBytes) {
  std::vector<float> block(64);
  for (std::size_t i = 0; i < 16; ++i) block[i] = 2 * kNormalFloats[i];
  for (std::size_t i = 0; i < 48; ++i)
    block[16 + i] = static_cast<float>(-2 + 4 * static_cast<double>(i) / 47);
  const BlockScales scales = block_scales(4, block.data(), 64);
  EXPECT_EQ(scales.largest, std::vector<float>{2});
  std::vector<std::byte> codes(32);
  pack_blocks(4, block.data(), scales.largest.data(), 1, codes.data());
  std::string hex;
  for (const std::byte code : codes) hex += fmt::format("{:02x}", std::to_integer<int>(code));
  EXPECT_EQ(hex, "0123456789abcdef00001111112223334455566778899aabbcccdddeeeeeffff");
}

TEST(Packing, TheScaleMapOfBitsAndBytes) {
  const std::array<float, 256> map = scale_map();
  EXPECT_TRUE(std::is_sorted(map.begin(), map.end()));
  // Values of create_dynamic_map() of bitsandbytes 0.50.2.
  for (const auto& [index, value] : std::vector<std::pair<int, float>>{{0, -0.992968738F},
                                                                       {1, -0.978906274F},
                                                                       {63, -0.107031256F},
                                                                       {64, -0.0985937491F},
                                                                       {95, -0.0114062503F},
                                                                       {96, -0.00971874967F},
                                                                       {112, -0.000943750085F},
                                                                       {120, -8.87499991e-05F},
                                                                       {126, -5.50000038e-07F},
                                                                       {127, 0.0F},
                                                                       {128, 5.50000038e-07F},
                                                                       {129, 3.25000019e-06F},
                                                                       {135, 0.000156250011F},
                                                                       {160, 0.0142187504F},
                                                                       {192, 0.12109375F},
                                                                       {254, 0.992968738F},
                                                                       {255, 1.0F}})
    EXPECT_EQ(map[static_cast<std::size_t>(index)], value) << index;
}

TEST(Packing, ElementsOfEveryBlockAreWholeNumbersOfStepsInEightBits) {
  std::vector<float> block(64);
  std::iota(block.begin(), block.end(), -63.0f);
  block[0] = -127;
  const BlockScales scales = block_scales(8, block.data(), 64);
  std::vector<std::byte> codes(64);
  pack_blocks(8, block.data(), scales.largest.data(), 1, codes.data());
  for (std::size_t i = 0; i < 64; ++i)
    EXPECT_EQ(static_cast<float>(std::to_integer<std::int8_t>(codes[i])), block[i]);
}

TEST(Packing, AnElementThatIsNotFiniteShowsInItsScale) {
  std::vector<float> matrix(128, 1.0f);
  matrix[70] = INFINITY;
  EXPECT_FALSE(std::isnan(block_scales(8, matrix.data(), 128).largest[0]));
  EXPECT_TRUE(std::isnan(block_scales(8, matrix.data(), 128).largest[1]));
  matrix[70] = NAN;
  EXPECT_TRUE(std::isnan(block_scales(8, matrix.data(), 128).largest[1]));
}

TEST(Packing, PartsOfBlocksAreRefused) {
  EXPECT_THROW(block_scales(4, nullptr, 65), Error);
  CpuBench cpu;
  HostTensor codes(DType::u8, {32}), scales(DType::u8, {1}), groups(DType::f32, {1});
  const HostTensor tables = packing_tables();
  HostTensor out(DType::f32, {64});
  EXPECT_THROW(
      ops::unpack(
          cpu.stream,
          {.codes = codes, .scales = scales, .groups = groups, .tables = tables, .out = out}),
      Error)
      << "the block has no group";
}

}  // namespace
}  // namespace choir::test
