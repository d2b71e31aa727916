#include "src/core/hash.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace choir {
namespace {

// RFC 3720, appendix B.4, and the check value of the CRC catalogue.
TEST(Crc32c, PublishedVectors) {
  EXPECT_EQ(crc32c("123456789", 9), 0xE3069283u);
  EXPECT_EQ(crc32c("", 0), 0u);
  std::vector<unsigned char> bytes(32, 0);
  EXPECT_EQ(crc32c(bytes.data(), 32), 0x8A9136AAu);
  bytes.assign(32, 0xff);
  EXPECT_EQ(crc32c(bytes.data(), 32), 0x62A8AB43u);
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(0));
  EXPECT_EQ(crc32c(bytes.data(), 32), 0x46DD794Eu);
}

// The check value of the CRC catalogue for zip archives.
TEST(Crc32, CheckValueAtAnyCut) {
  const std::string text = "123456789";
  EXPECT_EQ(crc32(text.data(), text.size()), 0xCBF43926u);
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    const std::uint32_t first = crc32(text.data(), cut),
                        rest = crc32(text.data() + cut, text.size() - cut);
    EXPECT_EQ(crc32(text.data() + cut, text.size() - cut, first), 0xCBF43926u) << cut;
    EXPECT_EQ(crc32_combine(first, rest, text.size() - cut), 0xCBF43926u) << cut;
  }
}

std::string noise(std::size_t n) {
  std::string text(n, '\0');
  std::uint32_t x = 12345;
  for (char& c : text) x = x * 1664525u + 1013904223u, c = static_cast<char>(x >> 24);
  return text;
}

/// Computes the checksum bit by bit, as the polynomial is defined.
std::uint32_t by_bits(const std::string& text) {
  std::uint32_t c = 0xffffffffu;
  for (const char byte : text) {
    c ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) c = (c & 1u) ? (c >> 1) ^ 0x82F63B78u : c >> 1;
  }
  return ~c;
}

// Lengths around those that are divided into lanes: 3 x 2 KiB and 3 x 32 KiB.
TEST(Crc32c, LongTextsAreThoseOfTheDefinition) {
  for (const std::size_t n : {6143u, 6144u, 6151u, 98303u, 98304u, 98311u, 210001u}) {
    const std::string text = noise(n);
    EXPECT_EQ(crc32c(text.data(), n), by_bits(text)) << n;
    EXPECT_EQ(crc32c(text.data() + 1, n - 1), by_bits(text.substr(1))) << n;
  }
}

TEST(Crc32c, ContinuesAtAnyCut) {
  const std::string text = noise(257);
  const std::uint32_t whole = crc32c(text.data(), text.size());
  for (std::size_t cut = 0; cut <= text.size(); ++cut)
    EXPECT_EQ(crc32c(text.data() + cut, text.size() - cut, crc32c(text.data(), cut)), whole) << cut;
}

TEST(Crc32c, CombinesTheSumsOfParts) {
  const std::string text = noise(5000);
  const std::uint32_t whole = crc32c(text.data(), text.size());
  for (const std::size_t cut : {0u, 1u, 63u, 64u, 4095u, 4999u, 5000u}) {
    const std::uint32_t a = crc32c(text.data(), cut);
    const std::uint32_t b = crc32c(text.data() + cut, text.size() - cut);
    EXPECT_EQ(crc32c_combine(a, b, text.size() - cut), whole) << cut;
  }
}

TEST(Crc32c, SeesEverySingleFlippedBit) {
  std::string text = noise(64);
  const std::uint32_t whole = crc32c(text.data(), text.size());
  for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_NE(crc32c(text.data(), text.size()), whole) << bit;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
  }
}

}  // namespace
}  // namespace choir
