// Hostile files: each caused, or would have caused, a crash, an allocation without bounds, or hours
// of work.
#include <gtest/gtest.h>

#include <limits>

#include "src/core/hash.hpp"
#include "src/data/audio/archive_reader.hpp"
#include "src/data/audio/audio_decoder.hpp"
#include "src/data/audio/audio_manifest.hpp"
#include "src/data/audio/audio_unit.hpp"
#include "src/data/audio/packed_audio.hpp"
#include "src/data/audio/prepare_audio.hpp"
#include "src/data/audio/transcripts.hpp"
#include "src/data/audio/waveform.hpp"
#include "src/data/speech/label_file.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

using test::ScratchFolder;
using test::write_bytes;

std::string nested(std::size_t levels) {
  return std::string(levels, '[') + std::string(levels, ']');
}

/// The reason for which the only line of a manifest is left out.
std::string left_out(const ScratchFolder& folder, const std::string& line) {
  write_bytes(folder / "m.json", line + "\n");
  const AudioManifest manifest = read_audio_manifests({folder / "m.json"}, {});
  return manifest.left_out.size() == 1 ? manifest.left_out[0].detail : "";
}

TEST(HostileInput, LinesOfManifests) {
  const ScratchFolder folder;
  const std::string front = R"({"audio_filepath": "a.wav", "duration": 1, "x": )";
  EXPECT_EQ(left_out(folder, front + nested(200000) + "}"),
            "column 112: nested deeper than 64 levels");
  std::string wide = front + "{";
  for (int i = 0; i < 20000; ++i) wide += fmt::format("\"{}\":0,", i);
  EXPECT_EQ(left_out(folder, wide + "\"z\":0}}"),
            "column 88940: more than 10000 keys in one object");
  EXPECT_EQ(left_out(folder, R"({"audio_filepath":"a","duration":1,"sampling_rate":4294967296})"),
            "\"sampling_rate\" is 4294967296");
  EXPECT_EQ(left_out(folder, R"({"id":"c","duration":1,"channel":4294967296,"type":"MonoCut"})"),
            "\"channel\" is 4294967296");
  write_bytes(folder / "t.json", front + nested(200000) + "}\n");
  const auto requests = read_transcript_manifest(folder / "t.json", {});
  ASSERT_EQ(requests.size(), 1u);
  ASSERT_TRUE(requests[0].fault.has_value());
  EXPECT_NE(transcript_line(requests[0], {}).find("\"line\":\"{"), std::string::npos);
}

TEST(HostileInput, NamesOfManyShards) {
  EXPECT_EQ(expand_shard_pattern("a_{0..9}_{00..99}.json").size(), 1000u);
  EXPECT_DATA_ERROR(expand_shard_pattern("a_{0..99999}_{0..99999}_{0..99999}.json"),
                    "names more than 1000000 files");
}

TEST(HostileInput, ALineWithoutEnd) {
  const ScratchFolder folder;
  write_bytes(folder / "m.json", std::string((std::size_t{16} << 20) + (1u << 17), ' '));
  EXPECT_DATA_ERROR(read_audio_manifests({folder / "m.json"}, {}), "has more than 16 MiB");
}

/// A member's header (ustar), without its bytes.
std::string tar_header(const std::string& name, char type, const std::string& size) {
  std::string head(512, '\0');
  name.copy(head.data(), 100);
  fmt::format("0000644{0}0000000{0}0000000{0}{1}{0}00000000000{0}        ", '\0', size)
      .copy(head.data() + 100, 56);
  head[156] = type;
  std::string("ustar\00000", 8).copy(head.data() + 257, 8);
  unsigned sum = 0;
  for (const char c : head) sum += static_cast<unsigned char>(c);
  fmt::format("{:06o}{} ", sum, '\0').copy(head.data() + 148, 8);
  return head;
}

// GNU's sparse form: two blocks of the archive claim to be eight gigabytes of zeros.
TEST(HostileInput, AnArchiveThatIsLargerInside) {
  const ScratchFolder folder;
  std::string head = tar_header("a.wav", 'S', "00000000000");
  std::string("ustar  \0", 8).copy(head.data() + 257, 8);
  std::string("00000000000\00000000000000\0", 24).copy(head.data() + 386, 24);
  std::string("77777777777\0", 12).copy(head.data() + 483, 12);
  std::string("        ").copy(head.data() + 148, 8);
  unsigned sum = 0;
  for (const char c : head) sum += static_cast<unsigned char>(c);
  fmt::format("{:06o}{} ", sum, '\0').copy(head.data() + 148, 8);
  write_bytes(folder / "a.tar", head + std::string(1024, '\0'));
  ArchiveReader archive(folder / "a.tar");
  EXPECT_DATA_ERROR(archive.next(), "holds more than a hundred times its own size");
}

TEST(HostileInput, MembersOfAnArchiveAreNotFilesOfTheFolder) {
  const ScratchFolder folder;
  const std::string absolute = folder / "escaped";
  const std::string wav = wav_header(16000, 160) + std::string(320, '\1');
  std::string tar;
  for (const std::string& name : {std::string("../../escaped"), absolute})
    tar += tar_header(name, '0', fmt::format("{:011o}", wav.size())) + wav +
           std::string(512 - wav.size() % 512, '\0');
  write_bytes(folder / "in/a.tar",
              tar + tar_header("l", '2', "00000000000") + std::string(1024, '\0'));
  AudioUnit unit;
  for (const std::string& name : {std::string("../../escaped"), absolute, std::string("l")}) {
    AudioEntry& entry = unit.entries.emplace_back();
    entry.path = folder / "in/a.tar", entry.member = name, entry.duration = 0.01;
    entry.before = "{\"duration\":", entry.after = "}", entry.whole = true;
  }
  std::filesystem::create_directories(folder / "in/out");
  const UnitResult result =
      run_audio_unit(unit, {.sample_rate = 16000, .channel = {}, .stop_on_bad = false},
                     folder / "in/out", [](double) {});
  EXPECT_EQ(result.utterances.size(), 2u);
  ASSERT_EQ(result.left_out.size(), 1u);
  EXPECT_NE(result.left_out[0].detail.find("has no member 'l'"), std::string::npos);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"a.tar", "audio_00000.part", "audio_00000.pcm", "in",
                                             "out"}));
}

/// The remainder of a polynomial over GF(2), bit by bit; the polynomial is given without its
/// highest term.
std::uint32_t remainder_of(const std::string& bytes, int bits, std::uint32_t polynomial) {
  std::uint32_t crc = 0;
  for (const char byte : bytes) {
    crc ^= static_cast<std::uint32_t>(static_cast<unsigned char>(byte)) << (bits - 8);
    for (int i = 0; i < 8; ++i) crc = (crc << 1) ^ ((crc >> (bits - 1) & 1) != 0 ? polynomial : 0);
    crc &= (std::uint32_t{1} << bits) - 1;
  }
  return crc;
}

// The first block of FLAC (RFC 9639): 4096 samples per frame, 16 bits, one channel, at 16 kHz; the
// number of samples has 36 bits. One frame follows, whose samples are all 0.
std::string flac_of_one_frame(std::uint64_t samples) {
  const std::uint64_t rest = std::uint64_t{16000} << 44 | std::uint64_t{15} << 36 | samples;
  std::string bytes("fLaC\x80\0\0\x22\x10\0\x10\0\0\0\0\0\0\0", 18);
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(rest >> shift);
  bytes += std::string(16, '\0');
  std::string frame("\xff\xf8\xc5\x08\0", 5);
  frame += static_cast<char>(remainder_of(frame, 8, 0x07));
  frame += std::string(3, '\0');  // a constant subframe
  const std::uint32_t crc = remainder_of(frame, 16, 0x8005);
  frame += static_cast<char>(crc >> 8);
  frame += static_cast<char>(crc);
  return bytes + frame;
}

TEST(HostileInput, AHeaderThatPromisesHours) {
  const std::string bytes = flac_of_one_frame(std::uint64_t{1} << 35);
  const std::vector<char> image(bytes.begin(), bytes.end());
  const auto open = [&] { return AudioDecoder::from_memory(image, "a.flac"); };
  EXPECT_EQ(open().read(0, 4096, {}, 16000).samples.size(), 4096u);
  EXPECT_EQ(open().frames(), std::int64_t{1} << 35);
  EXPECT_DATA_ERROR(open().read(0, std::int64_t{1} << 35, {}, 16000), "too many at once");
  EXPECT_DATA_ERROR(open().read(0, std::int64_t{1} << 30, {}, 16000), "ends after 4096 of");
  EXPECT_DATA_ERROR(open().read(1, std::numeric_limits<std::int64_t>::max(), {}, 16000),
                    "were requested");
}

TEST(HostileInput, ARateThatIsNone) {
  for (const int rate : {7, 2000000000}) {
    const std::string bytes = wav_header(rate, 100) + std::string(200, '\0');
    EXPECT_DATA_ERROR(AudioDecoder::from_memory({bytes.begin(), bytes.end()}, "a.wav"),
                      fmt::format("a sample rate of {} hertz", rate));
  }
}

// The samples are finite before they are resampled.
TEST(HostileInput, SamplesAsLargeAsTheyGet) {
  std::string bytes = wav_header(8000, 800);  // 400 of 32 bits
  const auto patch = [&](std::size_t at, std::uint16_t value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
  };
  patch(20, 3), patch(32, 4), patch(34, 32);  // IEEE, bytes a frame, bits
  for (int i = 0; i < 400; ++i) {
    const float x = (i / 3 % 2 == 0 ? 1 : -1) * std::numeric_limits<float>::max();
    bytes.append(reinterpret_cast<const char*>(&x), sizeof x);
  }
  const auto open = [&] {
    return AudioDecoder::from_memory({bytes.begin(), bytes.end()}, "a.wav");
  };
  EXPECT_DATA_ERROR(open().read(0, 400, {}, 8000), "times full scale");
  EXPECT_DATA_ERROR(open().read(0, 400, {}, 16000), "too large to resample from 8000 to 16000");
}

TEST(HostileInput, Tokenizers) {
  EXPECT_DATA_ERROR(Vocabulary::from_json(R"({"kind": 5})", "v"), "has no 'hash'");
  EXPECT_DATA_ERROR(Vocabulary::from_json("{\"kind\":" + nested(200000) + "}", "v"),
                    "nested deeper than 64 levels");
  EXPECT_DATA_ERROR(Vocabulary::from_json(R"({"kind":"char","hash":"","entries":{"a":"b"}})", "v"),
                    "has 'entries' that are no list");
}

TEST(HostileInput, RecordsOfPackedSpeech) {
  const ScratchFolder folder;
  const std::string at = folder.path();
  write_bytes(folder / "manifest.jsonl", "{}\n");
  AudioCatalog::Utterance good{0, 0, 0, 10, 0, 2, 0}, line = good, far = good, longest = good;
  line.line = std::numeric_limits<std::int64_t>::max();
  far.first = std::numeric_limits<std::int64_t>::max() / 32 * 32;
  longest.samples = std::numeric_limits<std::int64_t>::max();
  AudioCatalog::write(at, 16000, 1, {good}, 3, 0);
  EXPECT_EQ(AudioCatalog::open(at).line(0), "{}");
  for (const auto& bad : {line, far, longest}) {
    AudioCatalog::write(at, 16000, 1, {good, bad}, 3, 0);
    EXPECT_DATA_ERROR(AudioCatalog::open(at), "has an impossible record: utterance 1");
  }
  AudioCatalog::write(at, 0, 1, {good}, 3, 0);
  EXPECT_DATA_ERROR(AudioCatalog::open(at), "impossible numbers: 0 hertz");
  AudioCatalog::write(at, 16000, -1, {good}, 3, 0);
  EXPECT_DATA_ERROR(AudioCatalog::open(at), "4294967295 shards");
}

TEST(HostileInput, ANumberOfLabelsBelowNone) {
  const ScratchFolder folder;
  LabelFile::write(folder.path(), "x", 3, 7, 40, {{}}, {true});
  std::string bytes = test::read_bytes(folder / "labels.x.bin");
  const std::int32_t count = -5;
  std::memcpy(bytes.data() + 64, &count, sizeof count);
  const std::uint32_t payload = crc32c(bytes.data() + 64, bytes.size() - 64);
  std::memcpy(bytes.data() + 56, &payload, sizeof payload);
  const std::uint32_t header = crc32c(bytes.data(), 60);
  std::memcpy(bytes.data() + 60, &header, sizeof header);
  write_bytes(folder / "labels.x.bin", bytes);
  EXPECT_DATA_ERROR(LabelFile::open(folder.path(), "x", 3), "gives utterance 0 -5 ids");
}

// Files of another program, or of none: the shard is written again.
TEST(HostileInput, PartsOfAnUnfinishedRun) {
  const ScratchFolder folder;
  BytePacker packer;
  packer.put(std::uint64_t{0x3130545241504843ull});
  packer.put(std::uint64_t{1}), packer.put(std::int64_t{1}), packer.put(std::uint32_t{1});
  packer.put(std::uint64_t{1} << 60);  // utterances
  std::string bytes = packer.bytes();
  const std::uint32_t crc = crc32c(bytes.data(), bytes.size());
  bytes.append(reinterpret_cast<const char*>(&crc), sizeof crc);
  write_bytes(folder / "audio_00000.part", bytes);
  EXPECT_FALSE(read_unit_part(folder.path(), 0).has_value());
  write_bytes(folder / "report.json", R"({"fingerprint": "not a number"})");
  EXPECT_EQ(report_fingerprint(folder.path()), 0u);
}

}  // namespace
}  // namespace choir
