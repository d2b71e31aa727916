#include "src/store/safetensors/safetensors.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "src/core/json_value.hpp"
#include "test/unit/store/weights_fixture.hpp"

namespace choir {
namespace {

using test::bytes_of;
using test::from_hex;
using test::refusal;
using test::values;
using test::WeightsFolder;
using Floats = std::vector<float>;

// z = 7, a.w = 0 .. 5, b = 1, -2: bytes of the format's own library.
const std::string kHeader =
    R"({"__metadata__":{"format":"pt"},"z":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
    R"("a.w":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},)"
    R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[32,36]}}  )";
const std::string kData =
    from_hex("0700000000000000 00000000 0000803f 00000040 00004040 00008040 0000a040 803f 00c0");

std::string file_of(const std::string& header, const std::string& data) {
  return bytes_of(static_cast<std::uint64_t>(header.size())) + header + data;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

struct Safetensors : testing::Test {
  std::string refused(const std::string& bytes) {
    const std::string path = folder.put("bad.safetensors", bytes);
    return refusal([&] { SafetensorsReader reader(path); });
  }
  std::string refused_header(const std::string& from, const std::string& to) {
    return refused(file_of(replaced(kHeader, from, to), kData));
  }
  /// Three tensors over two shards of 24 bytes.
  void write_shards() {
    SafetensorsWriter writer(
        folder.path(),
        {{"a", Encoding::f32, {2, 2}}, {"b", Encoding::bf16, {3}}, {"c", Encoding::f32, {3}}},
        {.shard_bytes = 24});
    writer.lay_out();
    const Floats a{1, 2, 3, 4}, b{5, 6, 7}, c{8, 9, 10};
    writer.write("a", 0, 4, a.data(), DType::f32);
    writer.write("b", 0, 3, b.data(), DType::f32);
    writer.write("c", 0, 3, c.data(), DType::f32);
    writer.sync();
    writer.commit(writer.written());
  }
  WeightsFolder folder;
};

TEST_F(Safetensors, ReadsWhatTheLibraryWrote) {
  const SafetensorsReader reader(folder.put("tiny.safetensors", file_of(kHeader, kData)));
  ASSERT_EQ(reader.tensors().size(), 3u);
  EXPECT_EQ(reader.at("z").shape, Shape());
  EXPECT_EQ(reader.at("a.w").shape, Shape({2, 3}));
  EXPECT_EQ(reader.at("b").encoding, Encoding::bf16);
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  EXPECT_EQ(values<std::int64_t>(reader, "z"), std::vector<std::int64_t>{7});
  EXPECT_EQ(values(reader, "a.w"), (Floats{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(values<double>(reader, "b"), (std::vector<double>{1, -2}));
  Floats middle(3);
  reader.read("a.w", 2, 3, middle.data(), DType::f32);
  EXPECT_EQ(middle, (Floats{2, 3, 4}));
  std::vector<f16> last(1);
  reader.read("b", 1, 1, last.data(), DType::f16);
  EXPECT_EQ(static_cast<float>(last[0]), -2);
  EXPECT_EQ(reader.find("a.b"), nullptr);
}

TEST_F(Safetensors, NamesWhatItCannotRead) {
  const SafetensorsReader reader(folder.put("tiny.safetensors", file_of(kHeader, kData)));
  EXPECT_SAYS(refusal([&] { values(reader, "a.x"); }), "has no tensor 'a.x'");
  EXPECT_SAYS(refusal([&] { values(reader, "z"); }), "is stored as I64 and cannot be read as f32");
  const std::string header = R"({"q":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}})";
  const SafetensorsReader listed(folder.put("f8.safetensors", file_of(header, "abcd")));
  EXPECT_EQ(listed.at("q").encoding, Encoding::f8_e4m3);
  EXPECT_SAYS(refusal([&] { values(listed, "q"); }), "stored as F8_E4M3");
}

TEST_F(Safetensors, EmptyTensorsAreAllowed) {
  const std::string header = R"({"e":{"dtype":"F32","shape":[0,4],"data_offsets":[4,4]},)"
                             R"("x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  const SafetensorsReader reader(folder.put("e.safetensors", file_of(header, "abcd")));
  EXPECT_EQ(values(reader, "e"), Floats{});
  EXPECT_EQ(values<std::uint8_t>(reader, "x")[3], 'd');
  EXPECT_SAYS(refused(file_of("", "")), "is not a JSON object");
  EXPECT_EQ(refused(file_of("{}", "")), "");
}

TEST_F(Safetensors, RefusesHeadersThatLie) {
  EXPECT_SAYS(refused("abc"), "too few");
  EXPECT_SAYS(refused(bytes_of(std::uint64_t{100'000'001}) + kHeader), "more than 100000000");
  EXPECT_SAYS(refused(bytes_of(~std::uint64_t{0}) + kHeader), "more than 100000000");
  EXPECT_SAYS(refused(bytes_of(std::uint64_t{5000}) + kHeader + kData), "ends at byte");
  EXPECT_SAYS(refused(file_of(" " + kHeader, kData)), "is not a JSON object");
  EXPECT_SAYS(refused(file_of(kHeader.substr(0, 60), kData)), "not valid JSON");
  EXPECT_SAYS(refused_header("a.w",
                             "a\xff"
                             "w"),
              "not valid JSON");
  EXPECT_SAYS(refused_header("\"b\"", "\"z\""), "key 'z' is given twice (first in column");
  EXPECT_SAYS(refused_header("{\"format\":\"pt\"}", "{\"format\":1}"), "'format' is not a text");
  EXPECT_SAYS(
      refused(file_of(R"({"a":)" + std::string(200, '[') + std::string(200, ']') + "}", "")),
      "nested deeper than 8 levels");
}

TEST_F(Safetensors, RefusesTensorsThatLie) {
  EXPECT_SAYS(refused_header("F32", "F33"), "tensor 'a.w' in");
  EXPECT_SAYS(refused_header("F32", "F33"), "unknown dtype \"F33\"");
  EXPECT_SAYS(refused_header("F32", "Q8_0"), "unknown dtype");
  EXPECT_SAYS(refused_header("\"F32\"", "32"), "unknown dtype 32");
  EXPECT_SAYS(refused_header("[2,3]", "[2,4]"), "needs 32 bytes");
  EXPECT_SAYS(refused_header("[2,3]", "[-2,3]"), "-2 where a size is expected");
  EXPECT_SAYS(refused_header("[2,3]", "[2.0,3]"), "2.0 where a size is expected");
  EXPECT_SAYS(refused_header("[2,3]", "[4294967296,4294967296]"),
              "an impossible number of elements");
  EXPECT_SAYS(refused_header("[2,3]", "[0,4294967296,4294967296,4294967296]"),
              "an impossible number of elements");
  EXPECT_SAYS(refused_header("[2,3]", "[1,1,1,1,1,2,3]"), "has 7 dimensions");
  EXPECT_SAYS(refused_header("\"shape\":[2,3],", ""), "has no 'shape'");
  EXPECT_SAYS(refused_header("[8,32]", "[32,8]"), "has the offsets [32, 8)");
  EXPECT_SAYS(refused_header("[8,32]", "[4,28]"), "overlaps the one before");
  EXPECT_SAYS(refused_header("[8,32]", "[9,33]"), "leaves a hole");
  EXPECT_SAYS(refused_header("[8,32]", "[9223372036854775800,9223372036854775824]"),
              "where a size is expected");
  EXPECT_SAYS(refused(file_of(kHeader, kData.substr(0, 35))), "the file at 243");
  EXPECT_SAYS(refused(file_of(kHeader, kData + "x")), "the file at 245");
}

TEST_F(Safetensors, WritesTheBytesOfTheLibrary) {
  SafetensorsWriter writer(
      folder.path(),
      {{"b", Encoding::bf16, {2}}, {"a.w", Encoding::f32, {2, 3}}, {"z", Encoding::i64, {}}});
  EXPECT_EQ(writer.bytes(), 36);
  writer.lay_out();
  const std::vector<std::int64_t> z{7};
  const std::vector<double> w{0, 1, 2, 3, 4, 5};
  const Floats b{1, -2};
  writer.write("z", 0, 1, z.data(), DType::i64);
  writer.write("a.w", 3, 3, w.data() + 3, DType::f64);
  writer.write("a.w", 0, 3, w.data(), DType::f64);
  writer.write("b", 0, 2, b.data(), DType::f32);
  writer.sync();
  EXPECT_EQ(folder.names(), std::vector<std::string>{"model.safetensors.tmp"});
  writer.commit(writer.written());
  EXPECT_EQ(folder.names(), std::vector<std::string>{"model.safetensors"});
  EXPECT_EQ(folder.bytes("model.safetensors"), file_of(kHeader, kData));
}

TEST_F(Safetensors, WritersOfSeveralRanksMakeOneFile) {
  const std::vector<TensorEntry> tensors{{"a", Encoding::f32, {4}}};
  const Floats a{1, 2, 3, 4};
  SafetensorsWriter first(folder.path(), tensors), second(folder.path(), tensors);
  first.lay_out();
  second.write("a", 2, 2, a.data() + 2, DType::f32);
  first.write("a", 0, 2, a.data(), DType::f32);
  first.sync();
  second.sync();
  EXPECT_SAYS(refusal([&] { first.commit(first.written()); }), "2 of 4 elements");
  first.commit(first.written() + second.written());
  EXPECT_EQ(values(*open_weights(folder.path()), "a"), a);
}

TEST_F(Safetensors, NothingRemainsOfAFileThatWasNotFinished) {
  {
    SafetensorsWriter writer(folder.path(), {{"a", Encoding::f32, {4}}});
    writer.lay_out();
    EXPECT_EQ(folder.names().size(), 1u);
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST_F(Safetensors, RefusesNumbersThatTheFileCannotHold) {
  SafetensorsWriter writer(folder.path(), {{"h", Encoding::f16, {3}}});
  writer.lay_out();
  const Floats fits{1, -65504, std::numeric_limits<float>::infinity()}, large{1, 65504, -65520};
  EXPECT_EQ(refusal([&] { writer.write("h", 0, 3, fits.data(), DType::f32); }), "");
  EXPECT_SAYS(refusal([&] { writer.write("h", 0, 3, large.data(), DType::f32); }),
              "element 2 of tensor 'h' cannot be held by F16");
}

TEST_F(Safetensors, ShardsComeBack) {
  write_shards();
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"model-00001-of-00002.safetensors",
                                                      "model-00002-of-00002.safetensors",
                                                      "model.safetensors.index.json"}));
  const auto index = parsed_json(folder.bytes("model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 34);
  EXPECT_EQ(index["metadata"]["total_parameters"], 10);
  EXPECT_EQ(index["weight_map"]["b"], "model-00001-of-00002.safetensors");
  EXPECT_EQ(index["weight_map"]["c"], "model-00002-of-00002.safetensors");
  const auto reader = open_weights(folder.path());
  EXPECT_EQ(reader->tensors().size(), 3u);
  EXPECT_EQ(values(*reader, "b"), (Floats{5, 6, 7}));
  EXPECT_EQ(values(*reader, "c"), (Floats{8, 9, 10}));
}

TEST_F(Safetensors, NamesAFileThatIsMissing) {
  EXPECT_SAYS(refusal([&] { SafetensorsReader reader(folder.file("none")); }), "No such file");
}

}  // namespace
}  // namespace choir
