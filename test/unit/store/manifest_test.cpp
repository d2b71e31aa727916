#include "src/store/manifest.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/core/hash.hpp"

namespace choir {
namespace {

Manifest example() {
  Manifest manifest;
  manifest.step = 100;
  manifest.saved_at = "2026-11-20 17:03:59";
  manifest.deck_hash = "abc";
  manifest.layout = "dp 4";
  manifest.metric = 1.0 / 3.0;
  manifest.state_bytes = 200;
  manifest.state_crc32c = 0xdeadbeef;
  manifest.structure_crc32c = 0x0000000f;
  manifest.tensors = {{"b", DType::bf16, {3, 7}, 150, 1}, {"a", DType::f32, {4}, 100, 0x80000000u}};
  return manifest;
}

TEST(CheckpointManifest, ComesBackAsItWent) {
  const Manifest back = Manifest::parse(example().to_text());
  EXPECT_EQ(back.step, 100);
  EXPECT_EQ(back.metric, 1.0 / 3.0);
  EXPECT_EQ(back.state_bytes, 200);
  EXPECT_EQ(back.state_crc32c, 0xdeadbeefu);
  EXPECT_EQ(back.structure_crc32c, 0xfu);
  ASSERT_EQ(back.tensors.size(), 2u);
  EXPECT_EQ(back.tensors[0].name, "b");
  EXPECT_EQ(back.tensors[0].shape, Shape({3, 7}));
  EXPECT_EQ(back.tensors[0].dtype, DType::bf16);
  EXPECT_EQ(back.tensors[1].offset, 100);
  EXPECT_EQ(back.tensors[1].crc32c, 0x80000000u);
  EXPECT_EQ(back.find("a"), &back.tensors[1]);
  EXPECT_EQ(back.find("c"), nullptr);
  EXPECT_TRUE(back.branch.id.empty()) << "as in manifests of versions without branches";
}

TEST(CheckpointManifest, NamesItsBranch) {
  Manifest manifest = example();
  manifest.branch = {.id = "0f1e", .began = 1764000000, .forks = {{"", 7}, {"a1", 9}}};
  const Branch back = Manifest::parse(manifest.to_text()).branch;
  EXPECT_EQ(back.id, "0f1e");
  EXPECT_EQ(back.began, 1764000000);
  ASSERT_EQ(back.forks.size(), 2u);
  EXPECT_EQ(back.forks[0].branch, "");
  EXPECT_EQ(back.forks[0].step, 7);
  EXPECT_EQ(back.forks[1].branch, "a1");
  EXPECT_EQ(back.forks[1].step, 9);
  for (const char* id : {"a\nb", "\x1b[2J"}) {
    manifest.branch.id = id;
    EXPECT_THROW(Manifest::parse(manifest.to_text()), StorageError);
  }
}

// A flip in white space or in the case of a hex digit may change nothing; any other is refused.
TEST(CheckpointManifest, NoFlippedBitChangesWhatIsRead) {
  const std::string good = example().to_text();
  int refused = 0;
  for (std::size_t i = 0; i < good.size(); ++i)
    for (const int bit : {0, 2, 5}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      try {
        EXPECT_EQ(Manifest::parse(bad).to_text(), good) << "byte " << i << " bit " << bit;
      } catch (const StorageError&) {
        ++refused;
      }
    }
  EXPECT_GT(refused, static_cast<int>(2 * good.size()));
}

TEST(CheckpointManifest, SaysWhatIsWrong) {
  const auto reason = [](const std::string& text) -> std::string {
    try {
      Manifest::parse(text);
    } catch (const StorageError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(reason("").find("not valid JSON"), std::string::npos);
  EXPECT_NE(reason("\x01garbage").find("not valid JSON"), std::string::npos);
  EXPECT_NE(reason("{}").find("malformed"), std::string::npos);
  EXPECT_NE(reason("[1, 2]").find("malformed"), std::string::npos);
  const std::string good = example().to_text();
  EXPECT_NE(reason(good.substr(0, good.size() / 2)).find("not valid JSON"), std::string::npos);
  Manifest outside = example();
  outside.tensors[0].offset = 199;
  EXPECT_NE(reason(outside.to_text()).find("does not fit"), std::string::npos);
}

// The checksum fits: somebody means harm, or another program wrote it.
TEST(CheckpointManifest, NumbersThatAreNoneAreRefused) {
  const auto reason = [](const std::string& from, const std::string& to) -> std::string {
    auto body = nlohmann::json::parse(example().to_text()).at("manifest").dump();
    const std::size_t at = body.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    body.replace(at, from.size(), to);
    const std::string canonical = nlohmann::json::parse(body).dump();
    try {
      Manifest::parse(fmt::format("{{\"crc32c\": \"{:08x}\", \"manifest\": {}}}",
                                  crc32c(canonical.data(), canonical.size()), body));
    } catch (const StorageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(reason("\"step\":100", "\"step\":100"), "");
  EXPECT_EQ(reason("\"step\":100", "\"step\":1e300"), "1e+300 is not a whole number");
  EXPECT_EQ(reason("\"step\":100", "\"step\":18446744073709551615"),
            "18446744073709551615 is not a whole number");
  EXPECT_EQ(reason("[3,7]", "[4611686018427387904,4]"),
            "tensor b has an impossible number of elements");
  EXPECT_EQ(reason("[3,7]", "[0,4611686018427387904,4]"),
            "tensor b has an impossible number of elements");
  EXPECT_EQ(reason("[3,7]", "[-3,-7]"), "tensor b has the extent -3");
  EXPECT_EQ(reason("[3,7]", "[1,1,1,1,1,3,7]"), "tensor b has 7 dimensions, more than 6");
  EXPECT_EQ(reason("[3,7]", "7"), "it is malformed: 'shape' is not a list");
  EXPECT_EQ(reason("\"bf16\"", "\"b16\""), "'b16' is not an element type");
  EXPECT_EQ(reason("\"offset\":100", "\"offset\":-1"),
            "tensor a of 16 bytes at -1 does not fit its shape or the file");
  EXPECT_EQ(reason("\"offset\":100", "\"offset\":149"), "tensor b overlaps the one before it");
  EXPECT_EQ(reason("\"name\":\"a\"", "\"name\":\"b\""), "two tensors have the name b");
  EXPECT_EQ(reason("\"step\":100", "\"step\":-100"), "it is of a negative step");
  EXPECT_EQ(reason("\"step\":100", "\"steps\":100"), "it is malformed: no 'step'");
  EXPECT_EQ(reason("\"metric\":0", "\"metric\":[0],\"other\":0"),
            "it is malformed: 'metric' is not a number");
  EXPECT_EQ(reason("\"bytes\":200", "\"bytes\":-9223372036854775808"),
            "it gives a file a negative size");
  EXPECT_EQ(reason("\"0000000f\"", "\"-000000f\""),
            "'-000000f' is not a checksum of 8 hexadecimal digits");
  EXPECT_EQ(
      reason("\"layout\":\"dp 4\"", "\"layout\":" + std::string(100, '[') + std::string(100, ']')),
      "line 1, column 265: nested deeper than 64 levels");
}

TEST(CheckpointManifest, AnotherFormatVersionIsNamed) {
  const std::string body = R"({"format":"choir-checkpoint","format_version":99})";
  const std::string text =
      fmt::format(R"({{"crc32c":"{:08x}","manifest":{}}})", crc32c(body.data(), body.size()), body);
  try {
    Manifest::parse(text);
    FAIL() << "accepted";
  } catch (const StorageError& error) {
    EXPECT_STREQ(error.what(), "it has format version 99, but this program reads 1");
  }
}

TEST(CheckpointManifest, RegionsCoverTheFileAndTheirCrcsMakeItsOwn) {
  std::string file(200, '\0');
  for (std::size_t i = 0; i < file.size(); ++i) file[i] = static_cast<char>(i * 37 + 11);
  const auto regions = regions_of(example().tensors, 200);
  ASSERT_EQ(regions.size(), 5u);  // own, a, own, b, own
  const std::int64_t offsets[] = {0, 100, 116, 150, 192}, bytes[] = {100, 16, 34, 42, 8};
  const int tensors[] = {-1, 1, -1, 0, -1};
  std::vector<std::uint32_t> crcs;
  std::string own;
  for (std::size_t i = 0; i < regions.size(); ++i) {
    EXPECT_EQ(regions[i].offset, offsets[i]);
    EXPECT_EQ(regions[i].bytes, bytes[i]);
    EXPECT_EQ(regions[i].tensor, tensors[i]);
    const auto at = static_cast<std::size_t>(offsets[i]), n = static_cast<std::size_t>(bytes[i]);
    crcs.push_back(crc32c(file.data() + at, n));
    if (tensors[i] < 0) own += file.substr(at, n);
  }
  EXPECT_EQ(crc_of_file(regions, crcs), crc32c(file.data(), file.size()));
  EXPECT_EQ(crc_of_structure(regions, crcs), crc32c(own.data(), own.size()));
}

TEST(CheckpointManifest, OverlappingTensorsAreRefused) {
  EXPECT_THROW(regions_of({{"a", DType::u8, {10}, 0, 0}, {"b", DType::u8, {10}, 9, 0}}, 100),
               StorageError);
}

}  // namespace
}  // namespace choir
