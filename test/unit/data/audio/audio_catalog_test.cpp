#include "src/data/audio/packed_audio.hpp"

#include "src/data/audio/packed_audio.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

using test::read_bytes;
using test::ScratchFolder;
using test::write_bytes;

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

// Two utterances: 80 samples 1, -2, 3, 7, 7, ... and 4 samples 100, -32768, 32767, 0. An
// independent program wrote the bytes from the description (Python, struct.pack and a bitwise
// crc32c).
const std::string kManifest =
    "{\"id\":\"a\",\"text\":\"h\xc3\xa9llo\",\"duration\":0.005}\n"
    "{\"id\":\"b\",\"text\":\"\",\"duration\":0.00025}\n";
const std::string kIndex = from_hex(
    "43484f49524944580100000004030201803e00000100000002000000000000005400000000000000b868eb0d"
    "0000000000000000000000000000000000000000"
    "00000000220d62ab0000000000000000500000000000000000000000000000002b00000005000000"
    "00000000b9ffb6e6600000000000000004000000000000002c000000000000002700000000000000"
    "2c4fd3bd");
const std::string kShardHeader = from_hex(
    "43484f495250434d01000000803e00006400000000000000fc7506f4"
    "000000000000000000000000000000000000000000000000000000000000000000000000");

class CatalogOnDisk : public testing::Test {
 protected:
  CatalogOnDisk() {
    std::vector<std::int16_t> first(80, 7);
    first[0] = 1, first[1] = -2, first[2] = 3;
    const std::vector<std::int16_t> second{100, -32768, 32767, 0};
    AudioShardWriter writer(audio_shard_path(folder_.path(), 0), 16000);
    const auto a = writer.append(first);
    const auto b = writer.append(second);
    writer.finish();
    write_bytes(folder_ / "manifest.jsonl", kManifest);
    utterances_ = {{0, a.crc, a.first, 80, 0, 43, 5}, {0, b.crc, b.first, 4, 44, 39, 0}};
    AudioCatalog::write(folder_.path(), 16000, 1, utterances_, std::ssize(kManifest), 0x0deb68b8);
  }
  std::string said_about(const std::string& index) {
    write_bytes(folder_ / "index.bin", index);
    return test::data_error_of([&] { AudioCatalog::open(folder_.path()); });
  }
  static std::string with(std::string bytes, std::size_t at, char bits) {
    bytes[at] = static_cast<char>(bytes[at] ^ bits);
    return bytes;
  }
  ScratchFolder folder_;
  std::vector<AudioCatalog::Utterance> utterances_;
};

TEST_F(CatalogOnDisk, BytesAreAsDescribed) {
  EXPECT_EQ(read_bytes(folder_ / "index.bin"), kIndex);
  const std::string shard = read_bytes(folder_ / "audio_00000.pcm");
  ASSERT_EQ(shard.size(), 64u + 2 * 100);
  EXPECT_EQ(shard.substr(0, 64), kShardHeader);
  EXPECT_EQ(shard.substr(64 + 2 * 80, 2 * 20), from_hex(std::string(64, '0') + "64000080ff7f0000"));
}

TEST_F(CatalogOnDisk, OpensAndTellsWhatIsInIt) {
  const AudioCatalog catalog = AudioCatalog::open(folder_.path());
  ASSERT_EQ(catalog.size(), 2);
  EXPECT_EQ(catalog[0], utterances_[0]);
  EXPECT_EQ(catalog[1], utterances_[1]);
  EXPECT_EQ(catalog.sample_rate(), 16000);
  EXPECT_EQ(catalog.shards(), 1);
  EXPECT_DOUBLE_EQ(catalog.hours(), 84.0 / 16000 / 3600);
  EXPECT_EQ(catalog.text(0), "h\xc3\xa9llo");
  EXPECT_EQ(catalog.text(1), "");
  EXPECT_EQ(catalog.line(1), kManifest.substr(44, 39));
  EXPECT_EQ(catalog.shard_path(0), folder_ / "audio_00000.pcm");
}

TEST_F(CatalogOnDisk, TravelsAsBytes) {
  const AudioCatalog catalog = AudioCatalog::open(folder_.path());
  const AudioCatalog other = AudioCatalog::deserialise(catalog.serialise());
  ASSERT_EQ(other.size(), 2);
  EXPECT_EQ(other[1], catalog[1]);
  EXPECT_EQ(other.hash(), catalog.hash());
  EXPECT_EQ(other.sample_rate(), 16000);
  EXPECT_EQ(other.shards(), 1);
  EXPECT_EQ(other.text(0), catalog.text(0));
}

TEST_F(CatalogOnDisk, HashFollowsTheData) {
  const std::uint64_t before = AudioCatalog::open(folder_.path()).hash();
  EXPECT_EQ(AudioCatalog::open(folder_.path()).hash(), before);
  AudioCatalog::write(folder_.path(), 16000, 1, utterances_, std::ssize(kManifest), 0x0deb68b9);
  EXPECT_NE(AudioCatalog::open(folder_.path()).hash(), before) << "another text";
}

TEST_F(CatalogOnDisk, DamageIsNamed) {
  const auto expect = [&](const std::string& bytes, const std::string& words) {
    const std::string said = said_about(bytes);
    EXPECT_NE(said.find(words), std::string::npos) << said;
    EXPECT_NE(said.find("index.bin"), std::string::npos) << said;
  };
  expect("", "is empty");
  expect(kIndex.substr(0, 63), "is truncated: 63 bytes");
  expect(kIndex.substr(0, 110), "promises 2 utterances");
  expect(kIndex + "x", "has bytes after its 2 utterances");
  expect(with(kIndex, 0, 1), "no CHOIRIDX at its start");
  expect(with(kIndex, 8, 2), "has version 3");
  expect(with(kIndex, 12, 7), "other byte order");
  expect(with(kIndex, 70, 1), "is corrupt");
  expect(with(kIndex, 147, 1), "is corrupt");
  EXPECT_EQ(said_about(kIndex), "");
  write_bytes(folder_ / "manifest.jsonl", kManifest + "{}\n");
  expect(kIndex, "belongs to a manifest of 84 bytes");
  std::filesystem::remove(folder_ / "index.bin");
  EXPECT_DATA_ERROR(AudioCatalog::open(folder_.path()), "holds no packed speech");
}

TEST_F(CatalogOnDisk, RecordsThatPointNowhereAreRefused) {
  for (const int wrong : {0, 1, 2, 3}) {
    auto records = utterances_;
    if (wrong == 0) records[1].shard = 1;
    if (wrong == 1) records[1].first = 97;
    if (wrong == 2) records[1].samples = 0;
    if (wrong == 3) records[1].line_bytes = 41;
    AudioCatalog::write(folder_.path(), 16000, 1, records, std::ssize(kManifest), 0);
    EXPECT_DATA_ERROR(AudioCatalog::open(folder_.path()), "impossible record: utterance 1");
  }
}

TEST_F(CatalogOnDisk, DamagedShardsAreNamed) {
  const std::string path = folder_ / "audio_00000.pcm";
  const std::string good = read_bytes(path);
  EXPECT_EQ(read_audio_shard_header(path).samples, 100);
  EXPECT_EQ(read_audio_shard_header(path).sample_rate, 16000);
  write_bytes(path, good.substr(0, 40));
  EXPECT_DATA_ERROR(read_audio_shard_header(path), "is truncated: 40 bytes");
  write_bytes(path, good.substr(0, 200));
  EXPECT_DATA_ERROR(read_audio_shard_header(path), "promises 100 samples, 68 are there");
  write_bytes(path, good + "x");
  EXPECT_DATA_ERROR(read_audio_shard_header(path), "has bytes after its 100 samples");
  write_bytes(path, with(good, 3, 1));
  EXPECT_DATA_ERROR(read_audio_shard_header(path), "no CHOIRPCM");
}

TEST(AudioShard, UnfinishedLeavesNothing) {
  const ScratchFolder folder;
  {
    AudioShardWriter writer(audio_shard_path(folder.path(), 3), 8000);
    const std::int16_t sample = 1;
    writer.append({&sample, 1});
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace choir
