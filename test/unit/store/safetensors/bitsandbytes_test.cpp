#include <gtest/gtest.h>

#include <cstring>

#include "src/core/hash.hpp"
#include "src/store/safetensors/safetensors.hpp"
#include "test/unit/store/weights_fixture.hpp"

namespace choir {
namespace {

using test::from_hex;
using test::refusal;
using test::values;
using Floats = std::vector<float>;

constexpr const char* kDescription =
    R"({"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [6, 40]})";
const Floats kNf4{-1.0f,
                  -0.6961928009986877f,
                  -0.5250730514526367f,
                  -0.39491748809814453f,
                  -0.28444138169288635f,
                  -0.18477343022823334f,
                  -0.09105003625154495f,
                  0.0f,
                  0.07958029955625534f,
                  0.16093020141124725f,
                  0.24611230194568634f,
                  0.33791524171829224f,
                  0.44070982933044434f,
                  0.5626170039176941f,
                  0.7229568362236023f,
                  1.0f};

/// A tensor with its bytes.
struct Held {
  TensorEntry entry;
  std::string bytes;
};

Held held(const std::string& name, Encoding encoding, Shape shape, const std::string& bytes) {
  return {{name, encoding, shape}, bytes};
}
Held floats(const std::string& name, const Floats& numbers) {
  return held(name, Encoding::f32, {std::ssize(numbers)}, test::bytes_of(numbers));
}
Held text(const std::string& name, const std::string& bytes) {
  return held(name, Encoding::u8, {std::ssize(bytes)}, bytes);
}

/// A matrix [6, 40] in four blocks of the package, whose last one is short.
std::vector<Held> four_bits() {
  return {
      held("w", Encoding::u8, {120, 1},
           from_hex("3ee73473f8cac74d53c33da552c8cd5d9a1a65756447e106b50331a82a4dae7b37b879638786a7"
                    "0b93caebbe618ea822636adce20419bf2413b6925679c3b6cc963aa7588259cb7866867844a258"
                    "54054444c98b555a9e50b461ba8d85a5bc720c99787177659334a276dd8e9aa5aa31e58c211b85"
                    "d21c2d")),
      held("w.absmax", Encoding::f32, {4}, from_hex("090c1c4000c0f73feffd47407be92140")),
      floats("w.quant_map", kNf4), text("w.quant_state.bitsandbytes__nf4", kDescription)};
}

struct BitsAndBytes : testing::Test {
  std::unique_ptr<TensorReader> open(const std::vector<Held>& all) {
    std::string header = "{", data;
    for (const Held& one : all) {
      std::string shape;
      for (int dim = 0; dim < one.entry.shape.rank(); ++dim)
        shape += (dim > 0 ? "," : "") + std::to_string(one.entry.shape[dim]);
      header += (data.empty() ? "\"" : ",\"") + one.entry.name + "\":{\"dtype\":\"" +
                std::string(name_of(one.entry.encoding)) + "\",\"shape\":[" + shape +
                "],\"data_offsets\":[" + std::to_string(data.size()) + "," +
                std::to_string(data.size() + one.bytes.size()) + "]}";
      data += one.bytes;
    }
    header += "}";
    const auto length = static_cast<std::uint64_t>(header.size());
    return open_weights(folder.put("model.safetensors", test::bytes_of(length) + header + data));
  }
  std::string refused(const std::vector<Held>& all) {
    return refusal([&] { open(all); });
  }
  /// Four bits with this description.
  std::string refused_as(const std::string& description) {
    std::vector<Held> all = four_bits();
    all[3] = text("w.quant_state.bitsandbytes__nf4", description);
    return refused(all);
  }
  test::WeightsFolder folder;
};

TEST_F(BitsAndBytes, FourBitsAreTheNumbersOfThePackage) {
  std::vector<Held> all = four_bits();
  all.push_back(floats("norm", {1, 2}));
  const auto reader = open(all);
  ASSERT_EQ(reader->tensors().size(), 2u);
  EXPECT_EQ(values(*reader, "norm"), (Floats{1, 2}));
  EXPECT_EQ(reader->at("w").shape, Shape({6, 40}));
  EXPECT_EQ(reader->at("w").encoding, Encoding::f32);
  const Floats whole = values(*reader, "w");
  EXPECT_EQ(whole[0], -0.9629014730453491f);
  EXPECT_EQ(whole[239], 1.4233509302139282f);
  EXPECT_EQ(crc32c(whole.data(), whole.size() * sizeof(float)), 0xb95a59ddu);
  for (const auto& [first, count] : {std::pair{0, 240}, {63, 2}, {7, 1}, {100, 139}, {239, 1}}) {
    Floats part(static_cast<std::size_t>(count));
    reader->read("w", first, count, part.data(), DType::f32);
    EXPECT_EQ(part, Floats(whole.begin() + first, whole.begin() + first + count)) << first;
  }
}

TEST_F(BitsAndBytes, StorageAndResultMayHaveOtherTypes) {
  std::vector<Held> all = four_bits();
  const Floats whole = values(*open(all), "w");
  all[0].entry = {"w", Encoding::bf16, {60, 1}};
  all[3] = text("w.quant_state.bitsandbytes__nf4",
                R"({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [6, 40]})");
  const auto reader = open(all);
  EXPECT_EQ(reader->at("w").encoding, Encoding::bf16);
  const Floats rounded = values(*reader, "w");
  for (std::size_t i = 0; i < whole.size(); ++i)
    EXPECT_EQ(rounded[i], static_cast<float>(bf16(whole[i]))) << i;
  Floats part(3);
  reader->read("w", 101, 3, part.data(), DType::f32);
  EXPECT_EQ(part, Floats(rounded.begin() + 101, rounded.begin() + 104));
}

// Scales of 8 elements in one byte each, with a scale for each two of them.
TEST_F(BitsAndBytes, ScalesMayBeQuantisedToo) {
  Floats map(256);
  for (std::size_t i = 0; i < map.size(); ++i) map[i] = (static_cast<float>(i) - 100) / 150;
  const std::string codes("\x0c\xf1\x7f", 3),
      packed("\x01\x23\x45\x67\x89\xab\xcd\xef\x10\x32\x54\x76", 12);
  const Floats outer{1.7f, 0.3f};
  const std::vector<Held> all{
      held("m.weight", Encoding::u8, {12, 1}, packed),
      held("m.weight.absmax", Encoding::u8, {3}, codes),
      floats("m.weight.quant_map", kNf4),
      floats("m.weight.nested_absmax", outer),
      floats("m.weight.nested_quant_map", map),
      text("m.weight.quant_state.bitsandbytes__nf4",
           R"({"quant_type": "nf4", "blocksize": 8, "dtype": "float32", "shape": [3, 8],)"
           R"( "nested_blocksize": 2, "nested_dtype": "float32", "nested_offset": 2.625})")};
  const auto reader = open(all);
  const Floats whole = values(*reader, "m.weight");
  for (std::size_t i = 0; i < 24; ++i) {
    const float product = map[static_cast<std::uint8_t>(codes[i / 8])] * outer[i / 16];
    const auto both = static_cast<unsigned>(static_cast<std::uint8_t>(packed[i / 2]));
    const float scale = test::bytes_of(product).empty() ? 0 : product + 2.625f;
    EXPECT_FLOAT_EQ(whole[i], kNf4[i % 2 == 0 ? both >> 4 : both & 15u] * scale) << i;
    float one = 0;
    reader->read("m.weight", static_cast<std::int64_t>(i), 1, &one, DType::f32);
    EXPECT_EQ(one, whole[i]) << i;
  }
}

TEST_F(BitsAndBytes, BytesHaveAScaleForEachRow) {
  const auto reader = open({held("a.weight", Encoding::i8, {2, 3}, "\x7f\x81\x02\x03\xfe\x40"),
                            floats("a.SCB", {2.5f, 0.75f}),
                            held("a.weight_format", Encoding::u8, {}, std::string(1, '\0'))});
  ASSERT_EQ(reader->tensors().size(), 1u);
  const float first = 2.5f / 127, second = 0.75f / 127;
  EXPECT_EQ(values(*reader, "a.weight"),
            (Floats{127 * first, -127 * first, 2 * first, 3 * second, -2 * second, 64 * second}));
}

TEST_F(BitsAndBytes, RefusesDescriptionsThatLie) {
  EXPECT_EQ(refused(four_bits()), "");
  EXPECT_SAYS(refused_as("{"), "JSON");
  EXPECT_SAYS(refused_as("[]"), "is not an object");
  EXPECT_SAYS(refused_as("{}"), "the quantised tensor 'w'");
  EXPECT_SAYS(refused_as(R"({"quant_type": "fp4"})"), "has the type 'fp4', of which only nf4");
  EXPECT_SAYS(refused_as(R"({"quant_type": "nf4", "blocksize": 0})"), "blocksize");
  EXPECT_SAYS(refused_as(R"({"quant_type": "nf4", "blocksize": 64, "dtype": "int8"})"),
              "has the dtype 'int8'");
  EXPECT_SAYS(refused_as(R"({"quant_type": "nf4", "blocksize": 64, "dtype": "float32"})"),
              "has no shape");
  EXPECT_SAYS(
      refused_as(R"({"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [6, 41]})"),
      "has 120 bytes for 246 elements");
  EXPECT_SAYS(
      refused_as(R"({"quant_type": "nf4", "blocksize": 32, "dtype": "float32", "shape": [6, 40]})"),
      "has 4 scales, not 8");
  for (const std::size_t missing : {0u, 1u, 2u}) {
    std::vector<Held> all = four_bits();
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(missing));
    EXPECT_NE(refused(all), "") << missing;
  }
  EXPECT_SAYS(
      refused({held("a.weight", Encoding::i8, {2, 3}, std::string(6, '\1')), floats("a.SCB", {1})}),
      "needs 2 numbers of F32 in 'a.SCB'");
}

}  // namespace
}  // namespace choir
