#include "src/store/gguf/gguf.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "test/unit/store/weights_fixture.hpp"

namespace choir {
namespace {

using test::bytes_of;
using test::from_hex;
using test::refusal;
using test::values;
using test::WeightsFolder;
using Floats = std::vector<float>;

// Five pairs and two tensors, written by the gguf package; the first test lists them.
const std::string kTiny = from_hex(
    "474755460300000002000000000000000500000000000000140000000000000067656e6572616c2e61726368"
    "69746563747572650800000005000000000000006c6c616d6111000000000000006c6c616d612e626c6f636b"
    "5f636f756e7404000000010000000300000000000000782e66060000000000003f1500000000000000746f6b"
    "656e697a65722e67676d6c2e746f6b656e730900000008000000020000000000000001000000000000006103"
    "00000000000000c4a06201000000000000007407000000011100000000000000746f6b656e5f656d62642e77"
    "6569676874020000000300000000000000020000000000000000000000000000000000000008000000000000"
    "006e2e7765696768740100000002000000000000000100000020000000000000000000000000000000000000"
    "000000000000000000000000000000000000803f0000004000004040000080400000a0400000000000000000"
    "003c004000000000000000000000000000000000000000000000000000000000");

template <class T>
std::string le(T value) {
  return bytes_of(value);
}
std::string text(const std::string& s) {
  return le(static_cast<std::uint64_t>(s.size())) + s;
}

/// A file of one pair and one tensor; a test can change each of its fields.
struct Parts {
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::uint64_t tensors = 1, pairs = 1;
  std::string pair = text("k") + le(std::uint32_t{4}) + le(std::uint32_t{7});
  std::string name = text("w");
  std::vector<std::uint64_t> dims{3, 2};
  std::uint32_t type = 0;
  std::uint64_t offset = 0;
  std::string data = bytes_of(Floats{1, 2, 3, 4, 5, 6});

  std::string bytes() const {
    std::string all = magic + le(version) + le(tensors) + le(pairs) + pair + name +
                      le(static_cast<std::uint32_t>(dims.size())) + bytes_of(dims) + le(type) +
                      le(offset);
    all.resize((all.size() + 31) / 32 * 32, '\0');
    return all + data;
  }
};

struct Gguf : testing::Test {
  std::string refused(const Parts& parts) { return refused_bytes(parts.bytes()); }
  std::string refused_bytes(const std::string& bytes) {
    const std::string path = folder.put("bad.gguf", bytes);
    return refusal([&] { GgufReader reader(path); });
  }
  std::string refused_pair(const std::string& pair) {
    Parts parts;
    parts.pair = pair;
    return refused(parts);
  }
  WeightsFolder folder;
};

TEST_F(Gguf, ReadsWhatThePackageWrote) {
  const GgufReader reader(folder.put("tiny.gguf", kTiny));
  const GgufMetadata& metadata = reader.metadata();
  ASSERT_EQ(metadata.pairs().size(), 5u);
  EXPECT_EQ(*metadata.get<std::string>("general.architecture"), "llama");
  EXPECT_EQ(*metadata.get<std::uint32_t>("llama.block_count"), 1u);
  EXPECT_EQ(metadata.get<std::int32_t>("llama.block_count"), nullptr);
  EXPECT_EQ(*metadata.get<float>("x.f"), 0.5f);
  EXPECT_EQ(*metadata.get_array<std::string>("tokenizer.ggml.tokens"),
            (std::vector<std::string>{"a",
                                      "\xc4\xa0"
                                      "b"}));
  EXPECT_EQ(*metadata.get<bool>("t"), true);
  EXPECT_EQ(reader.at("token_embd.weight").shape, Shape({2, 3}));
  EXPECT_EQ(values(reader, "token_embd.weight"), (Floats{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(reader.at("n.weight").encoding, Encoding::f16);
  EXPECT_EQ(values(reader, "n.weight"), (Floats{1, 2}));
}

TEST_F(Gguf, WritesTheBytesOfThePackage) {
  GgufMetadata metadata;
  metadata.add("general.architecture", std::string("llama"));
  metadata.add("llama.block_count", std::uint32_t{1});
  metadata.add("x.f", 0.5f);
  metadata.add("tokenizer.ggml.tokens", GgufArray(std::vector<std::string>{"a",
                                                                           "\xc4\xa0"
                                                                           "b"}));
  metadata.add("t", true);
  GgufWriter writer(
      folder.file("tiny.gguf"), metadata,
      {{"token_embd.weight", Encoding::f32, {2, 3}}, {"n.weight", Encoding::f16, {2}}});
  writer.lay_out();
  const Floats table{0, 1, 2, 3, 4, 5}, norm{1, 2};
  writer.write("token_embd.weight", 0, 6, table.data(), DType::f32);
  writer.write("n.weight", 0, 2, norm.data(), DType::f32);
  writer.sync();
  writer.commit(writer.written());
  EXPECT_EQ(folder.bytes("tiny.gguf"), kTiny);
}

TEST_F(Gguf, ValuesOfAllTypesComeBack) {
  const std::vector<GgufMetadata::Pair> pairs{
      {"u8", std::uint8_t{200}},
      {"i8", std::int8_t{-3}},
      {"u16", std::uint16_t{60000}},
      {"i16", std::int16_t{-300}},
      {"u32", std::uint32_t{4000000000}},
      {"i32", std::int32_t{-70000}},
      {"f32", 0.25f},
      {"bool", false},
      {"string", std::string("caf\xc3\xa9")},
      {"u64", ~std::uint64_t{0}},
      {"i64", std::int64_t{-5'000'000'000}},
      {"f64", 0.1},
      {"u8s", GgufArray(std::vector<std::uint8_t>{1, 2})},
      {"i8s", GgufArray(std::vector<std::int8_t>{-1})},
      {"u16s", GgufArray(std::vector<std::uint16_t>{1})},
      {"i16s", GgufArray(std::vector<std::int16_t>{-1})},
      {"u32s", GgufArray(std::vector<std::uint32_t>{})},
      {"i32s", GgufArray(std::vector<std::int32_t>{-1, 6})},
      {"f32s", GgufArray(Floats{0, -1000})},
      {"bools", GgufArray(std::vector<bool>{true, false})},
      {"strings", GgufArray(std::vector<std::string>{"", "x y"})},
      {"u64s", GgufArray(std::vector<std::uint64_t>{1})},
      {"i64s", GgufArray(std::vector<std::int64_t>{-1})},
      {"f64s", GgufArray(std::vector<double>{0.1})},
      {"general.alignment", std::uint32_t{64}}};
  GgufMetadata metadata;
  for (const auto& [key, value] : pairs) metadata.add(key, value);
  GgufWriter writer(folder.file("all.gguf"), metadata,
                    {{"b", Encoding::bf16, {3}}, {"s", Encoding::f32, {}}});
  writer.lay_out();
  const Floats b{1, 2, 3}, s{4};
  writer.write("b", 0, 3, b.data(), DType::f32);
  writer.write("s", 0, 1, s.data(), DType::f32);
  writer.commit(writer.written());
  EXPECT_EQ(folder.bytes("all.gguf").size() % 64, 0u);
  const GgufReader reader(folder.file("all.gguf"));
  EXPECT_EQ(reader.metadata().pairs(), pairs);
  EXPECT_EQ(values(reader, "b"), b);
  EXPECT_EQ(values(reader, "s"), s);
}

TEST_F(Gguf, QuantisedRowsAreReadInSlabsThatCutBlocks) {
  Floats numbers;
  for (int i = 0; i < 4 * 64; ++i) numbers.push_back(static_cast<float>(std::sin(0.37 * i)));
  GgufWriter writer(folder.file("q.gguf"), {}, {{"q", Encoding::q8_0, {4, 64}}});
  writer.lay_out();
  writer.write("q", 64, 192, numbers.data() + 64, DType::f32);
  writer.write("q", 0, 64, numbers.data(), DType::f32);
  writer.commit(writer.written());
  const GgufReader reader(folder.file("q.gguf"));
  const Floats whole = values(reader, "q");
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(whole[i], numbers[i], 0.0045) << i;
  for (const auto& [first, count] : {std::pair{0, 256}, {5, 3}, {31, 2}, {40, 200}, {255, 1}}) {
    Floats slab(static_cast<std::size_t>(count));
    reader.read("q", first, count, slab.data(), DType::f32);
    EXPECT_EQ(slab, Floats(whole.begin() + first, whole.begin() + first + count)) << first;
  }
}

TEST_F(Gguf, ReadsBlocksOfFourBits) {
  Parts parts;
  parts.dims = {32};
  parts.type = 2;
  parts.data = bytes_of(f16(0.5f)) + std::string(16, '\x90');
  const GgufReader reader(folder.put("q4.gguf", parts.bytes()));
  const Floats got = values(reader, "w");
  EXPECT_EQ(got[0], -4);
  EXPECT_EQ(got[31], 0.5f);
}

TEST_F(Gguf, RefusesHeadersThatLie) {
  EXPECT_EQ(refused({}), "");
  EXPECT_SAYS(refused({.magic = "GGML"}), "is not a GGUF file");
  EXPECT_SAYS(refused({.version = 1}), "has version 1 of GGUF");
  EXPECT_SAYS(refused({.version = 0x03000000}), "big-endian");
  EXPECT_SAYS(refused({.tensors = ~std::uint64_t{0}}), "claims 18446744073709551615 tensors");
  EXPECT_SAYS(refused({.tensors = 3}), "bytes in the name of a tensor");
  EXPECT_SAYS(refused({.pairs = 4097}), "claims 4097 pairs");
  EXPECT_SAYS(refused({.pairs = 2}), "claims");
  const std::string good = Parts().bytes();
  for (const std::size_t length : {0u, 3u, 20u, 40u, 60u})
    EXPECT_NE(refused_bytes(good.substr(0, length)), "") << length;
}

TEST_F(Gguf, RefusesPairsThatLie) {
  const std::uint32_t u32 = 4, string = 8, array = 9;
  EXPECT_SAYS(refused_pair(le(~std::uint64_t{0}) + "k"), "bytes in a key");
  EXPECT_SAYS(refused_pair(text("k") + le(std::uint32_t{13}) + le(u32)), "the unknown type 13");
  EXPECT_SAYS(refused_pair(text("k") + le(std::uint32_t{7}) + "\x02"), "the truth value 2");
  EXPECT_SAYS(refused_pair(text("k") + le(string) + le(std::uint64_t{1} << 40) + "abc"),
              "claims 1099511627776 bytes in a text");
  EXPECT_SAYS(refused_pair(text("k") + le(array) + le(u32) + le(std::uint64_t{1} << 61)),
              "items in an array");
  EXPECT_SAYS(refused_pair(text("k") + le(array) + le(array) + le(std::uint64_t{0})),
              "array of arrays");
  EXPECT_SAYS(refused_pair(text("k") + le(array) + le(std::uint32_t{99}) + le(std::uint64_t{0})),
              "unknown type 99");
  Parts twice;
  twice.pairs = 2;
  twice.pair += twice.pair;
  EXPECT_SAYS(refused(twice), "has the key 'k' twice");
  EXPECT_SAYS(refused_pair(text("general.alignment") + le(u32) + le(std::uint32_t{24})),
              "not a power of two");
  EXPECT_SAYS(refused_pair(text("general.alignment") + le(u32) + le(std::uint32_t{0})),
              "not a power of two");
  EXPECT_SAYS(refused_pair(text("split.count") + le(u32) + le(std::uint32_t{3})),
              "has a value of another type for split.count");
}

/// A part of a model with one tensor of two numbers.
std::string part_of_model(std::uint16_t number, std::uint16_t parts, const std::string& tensor,
                          const Floats& numbers, std::int32_t all = 3) {
  Parts part;
  part.pairs = 4;
  part.pair = text("split.no") + le(std::uint32_t{2}) + le(number) + text("split.count") +
              le(std::uint32_t{2}) + le(parts) + text("split.tensors.count") +
              le(std::uint32_t{5}) + le(all) + text("general.alignment") + le(std::uint32_t{4}) +
              le(std::uint32_t{32});
  part.name = text(tensor);
  part.dims = {2};
  part.data = bytes_of(numbers);
  return part.bytes();
}

TEST_F(Gguf, PartsOfAModelAreReadAsOne) {
  const std::string first = folder.put("m-00001-of-00003.gguf", part_of_model(0, 3, "a", {1, 2}));
  folder.put("m-00002-of-00003.gguf", part_of_model(1, 3, "b", {3, 4}));
  const auto opened = [&] { GgufReader reader(first); };
  EXPECT_SAYS(refusal(opened), "m-00003-of-00003.gguf' is missing, part 3 of 3");
  folder.put("m-00003-of-00003.gguf", part_of_model(2, 3, "c", {5, 6}));
  const GgufReader reader(first);
  EXPECT_EQ(reader.tensors().size(), 3u);
  EXPECT_EQ(values(reader, "a"), (Floats{1, 2}));
  EXPECT_EQ(values(reader, "b"), (Floats{3, 4}));
  EXPECT_EQ(values(reader, "c"), (Floats{5, 6}));
  EXPECT_EQ(*reader.metadata().get<std::uint16_t>("split.no"), 0);

  const std::string second = folder.file("m-00002-of-00003.gguf");
  EXPECT_SAYS(refusal([&] { GgufReader part(second); }), "is part 2 of 3");
  folder.put("m-00002-of-00003.gguf", part_of_model(2, 3, "b", {3, 4}));
  EXPECT_SAYS(refusal(opened), "is part 3 of 3, but its name is that of part 2 of 3");
  folder.put("m-00002-of-00003.gguf", part_of_model(1, 4, "b", {3, 4}));
  EXPECT_SAYS(refusal(opened), "is part 2 of 4, but its name is that of part 2 of 3");
  folder.put("m-00002-of-00003.gguf", part_of_model(1, 3, "c", {3, 4}));
  EXPECT_SAYS(refusal(opened), "has two tensors 'c'");
  folder.put("m-00001-of-00003.gguf", part_of_model(0, 3, "a", {1, 2}, 7));
  folder.put("m-00002-of-00003.gguf", part_of_model(1, 3, "b", {3, 4}));
  EXPECT_SAYS(refusal(opened), "announces 7 tensors, but its 3 parts have 3");
  const std::string renamed = folder.put("model.gguf", part_of_model(0, 3, "a", {1, 2}));
  EXPECT_SAYS(refusal([&] { GgufReader part(renamed); }),
              "is the first of 3 parts, but its name does not end in -00001-of-00003.gguf");
}

TEST_F(Gguf, TensorsBeginAtMultiplesOfTheAlignment) {
  for (const std::uint32_t alignment : {8u, 32u, 128u, 4096u}) {
    GgufMetadata metadata;
    metadata.add("general.alignment", alignment);
    GgufWriter writer(folder.file("a.gguf"), metadata,
                      {{"b", Encoding::f32, {3}}, {"q", Encoding::q4_k, {2, 256}}});
    writer.lay_out();
    const Floats b{1, 2, 3}, q(512, 0.5f);
    writer.write("b", 0, 3, b.data(), DType::f32);
    writer.write("q", 0, 512, q.data(), DType::f32);
    writer.commit(writer.written());
    EXPECT_EQ(folder.bytes("a.gguf").size() % alignment, 0u);
    const GgufReader reader(folder.file("a.gguf"));
    EXPECT_EQ(values(reader, "b"), b);
    EXPECT_NEAR(values(reader, "q")[511], 0.5f, 1e-3);
  }
}

TEST_F(Gguf, RefusesTensorsThatLie) {
  EXPECT_SAYS(refused({.name = text(std::string(65, 'w'))}), "claims 65 bytes in the name");
  EXPECT_SAYS(refused({.dims = {1, 1, 1, 3, 2}}), "has 5 dimensions");
  EXPECT_SAYS(refused({.dims = {~std::uint64_t{0}, 2}}), "has the extent -1");
  EXPECT_SAYS(refused({.dims = {std::uint64_t{1} << 40, std::uint64_t{1} << 40}}),
              "an impossible number of elements");
  EXPECT_SAYS(refused({.type = 16}), "tensor 'w' in");
  EXPECT_SAYS(refused({.type = 16}), "is stored as IQ2_XXS");
  EXPECT_SAYS(refused({.dims = {288, 2}, .type = 12}),
              "has rows of 288 elements, not whole blocks of Q4_K");
  EXPECT_SAYS(refused({.type = 77}), "is stored as type 77");
  EXPECT_SAYS(refused({.dims = {16, 2}, .type = 8}), "rows of 16 elements");
  EXPECT_SAYS(refused({.offset = 32}), "begins at byte 32 of the data, not at 0");
  EXPECT_SAYS(refused({.dims = {3, 3}}), "tensor 'w' reaches byte");
  EXPECT_SAYS(refused({.dims = {3}, .data = std::string(60, 'x')}), "bytes behind its last tensor");
  Parts twice;
  twice.tensors = 2;
  twice.name = text("w") + le(std::uint32_t{1}) + le(std::uint64_t{1}) + le(std::uint32_t{0}) +
               le(std::uint64_t{0}) + text("w");
  twice.dims = {1};
  twice.offset = 32;
  twice.data = std::string(36, '\0');
  EXPECT_SAYS(refused(twice), "has two tensors 'w'");
}

TEST_F(Gguf, WritesNothingThatLlamaCppRefuses) {
  const std::string path = folder.file("x.gguf");
  EXPECT_SAYS(refusal([&] {
                GgufWriter writer(path, {}, {{std::string(64, 'n'), Encoding::f32, {2}}});
              }),
              "GGUF cannot hold tensor");
  EXPECT_SAYS(refusal([&] {
                GgufWriter writer(path, {}, {{"w", Encoding::f32, {1, 1, 1, 1, 2}}});
              }),
              "GGUF cannot hold tensor");
}

}  // namespace
}  // namespace choir
