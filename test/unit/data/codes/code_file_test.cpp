#include "src/data/dialogues/code_file.hpp"

#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/data/dialogues/code_file.hpp"
#include "src/data/dialogues/prepare_codes.hpp"
#include "test/unit/data/packed_speech.hpp"

namespace choir {
namespace {

using test::PackedSpeech;
using test::read_bytes;
using test::ScratchFolder;
using test::write_bytes;

CodecDescription small_codec() {
  return {.hash = 0x1234567890abcdefull,
          .sample_rate = 1000,
          .frame_samples = 80,
          .codebooks = 3,
          .codes_per_book = 240,
          .silence = {7, 8, 239}};
}

/// A code that depends on the first sample of the frame and on its index.
std::vector<std::uint16_t> codes_of(std::span<const std::int16_t> samples) {
  const CodecDescription codec = small_codec();
  std::vector<std::uint16_t> codes;
  for (std::int64_t t = 0; t < codec.frames_of(std::ssize(samples)); ++t)
    for (std::int64_t k = 0; k < codec.codebooks; ++k)
      codes.push_back(static_cast<std::uint16_t>(
          (samples[static_cast<std::size_t>(t * codec.frame_samples)] + 32768 + 13 * k + t) % 240));
  return codes;
}

PackedSpeech speech_in(const ScratchFolder& folder, std::int64_t utterances = 4) {
  PackedSpeech speech;
  speech.folder = folder / "speech";
  speech.utterances = utterances;
  speech.shards = 2;
  speech.write();
  return speech;
}

PrepareCodesSummary prepare(const PackedSpeech& speech, const CodecDescription& codec,
                            const CodeMaker& make = codes_of) {
  const auto alone = make_mpi_communicator(MPI_COMM_SELF, "self");
  Logger log(false);
  return prepare_codes(*alone, log, speech.folder, "codec", codec, make);
}

std::vector<std::int16_t> samples_of(const PackedSpeech& speech, std::int64_t u) {
  std::vector<std::int16_t> samples(static_cast<std::size_t>(speech.samples(u)));
  for (std::size_t i = 0; i < samples.size(); ++i)
    samples[i] = speech.sample(u, static_cast<std::int64_t>(i));
  return samples;
}

TEST(CodeFile, ComesBackAsTheCodecMadeIt) {
  const ScratchFolder folder;
  const PackedSpeech speech = speech_in(folder);
  const auto summary = prepare(speech, small_codec());
  EXPECT_FALSE(summary.there_before);
  const AudioCatalog catalog = AudioCatalog::open(speech.folder);
  const CodeFile codes = CodeFile::open(catalog, "codec");
  EXPECT_EQ(codes.codec(), small_codec());
  ASSERT_EQ(codes.size(), 4);
  EXPECT_EQ(codes.frames(), summary.frames);
  for (std::int64_t u = 0; u < 4; ++u) {
    const auto all = codes_of(samples_of(speech, u));
    EXPECT_EQ(codes.frames(u) * 3, std::ssize(all));
    EXPECT_EQ(codes.read(u), all);
    EXPECT_EQ(codes.read(u, 2, 3), std::vector(all.begin() + 6, all.begin() + 15));
    EXPECT_TRUE(codes.read(u, codes.frames(u), 0).empty());
    EXPECT_THROW(codes.read(u, codes.frames(u) - 1, 2), Error);
  }
  codes.require(small_codec());
  EXPECT_TRUE(prepare(speech, small_codec(), [](auto) -> std::vector<std::uint16_t> {
                throw Error(ExitCode::other, "codes that are there are not made again");
              }).there_before);
  EXPECT_FALSE(std::filesystem::exists(codes.path() + ".tmp"));
}

TEST(CodeFile, AnotherCodecIsRefusedAndItsCodesReplaced) {
  const ScratchFolder folder;
  const PackedSpeech speech = speech_in(folder);
  prepare(speech, small_codec());
  const AudioCatalog catalog = AudioCatalog::open(speech.folder);
  CodecDescription other = small_codec();
  other.hash = 5;
  EXPECT_DATA_ERROR(CodeFile::open(catalog, "codec").require(other), "another codec: of hash");
  EXPECT_FALSE(prepare(speech, other).there_before);
  CodeFile::open(catalog, "codec").require(other);
  other.codebooks = 4;
  EXPECT_DATA_ERROR(CodeFile::open(catalog, "codec").require(other), "codebooks: 3, not 4");
  other = small_codec();
  other.sample_rate = 16000;
  EXPECT_DATA_ERROR(prepare(speech, other), "packed at 1000 hertz, but the codec needs 16000");
}

TEST(CodeFile, IsRefusedBesideOtherAudio) {
  const ScratchFolder folder;
  PackedSpeech speech = speech_in(folder);
  EXPECT_DATA_ERROR(CodeFile::open(AudioCatalog::open(speech.folder), "codec"), "codes not found");
  prepare(speech, small_codec());
  const std::string path = CodeFile::path(speech.folder, "codec");
  speech.utterances = 5;
  speech.write();
  EXPECT_DATA_ERROR(CodeFile::open(AudioCatalog::open(speech.folder), "codec"),
                    "of 4 recordings, but the audio beside them has 5");
  speech.utterances = 4, speech.number = 1;
  speech.write();
  EXPECT_DATA_ERROR(CodeFile::open(AudioCatalog::open(speech.folder), "codec"), "another state");
  EXPECT_FALSE(prepare(speech, small_codec()).there_before);  // stale codes are written again
  for (const char* name : {"", "a/b", "..", "a b"})
    EXPECT_THROW(CodeFile::path(speech.folder, name), DeckError) << name;
}

/// Opens the file and reads everything.
void read_all(const PackedSpeech& speech) {
  const CodeFile codes = CodeFile::open(AudioCatalog::open(speech.folder), "codec");
  for (std::int64_t u = 0; u < codes.size(); ++u) (void)codes.read(u);
}

TEST(CodeFile, EveryFlippedByteIsNoticed) {
  const ScratchFolder folder;
  const PackedSpeech speech = speech_in(folder, 2);
  prepare(speech, small_codec());
  const std::string path = CodeFile::path(speech.folder, "codec"), good = read_bytes(path);
  read_all(speech);
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string broken = good;
    broken[i] = static_cast<char>(broken[i] ^ 0x10);
    write_bytes(path, broken);
    EXPECT_THROW(read_all(speech), DataError) << "byte " << i;
  }
  for (std::size_t length = 0; length < good.size(); length += 7) {
    write_bytes(path, good.substr(0, length));
    EXPECT_THROW(read_all(speech), DataError) << length << " bytes";
  }
  write_bytes(path, good + "x");
  EXPECT_DATA_ERROR(read_all(speech), "truncated or too long");
}

TEST(CodeFile, NothingIsLeftOfWhatFailed) {
  const ScratchFolder folder;
  const PackedSpeech speech = speech_in(folder);
  int made = 0;
  EXPECT_THROW(prepare(speech, small_codec(),
                       [&](std::span<const std::int16_t> samples) {
                         if (++made == 3) throw DataError("the third");
                         return codes_of(samples);
                       }),
               DataError);
  const std::string path = CodeFile::path(speech.folder, "codec");
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  speech.damage(1);
  EXPECT_DATA_ERROR(prepare(speech, small_codec()), "damaged in recording 1");
}

}  // namespace
}  // namespace choir
