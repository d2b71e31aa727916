// Sound files whose header promises no length, or a wrong one: every sample is decoded, and a
// segment equals the same part of the whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "choir_codec_features.hpp"
#include "choir_features.hpp"
#include "src/data/audio/audio_decoder.hpp"
#include "src/data/audio/audio_error.hpp"
#include "test/unit/data/scratch_folder.hpp"

#ifdef CHOIR_HAVE_SNDFILE
#include <sndfile.h>

namespace choir {
namespace {

constexpr int kRate = 16000;
// Values of libsndfile 1.1; earlier versions do not have the names.
constexpr int kOpus = 0x64, kMp3 = 0x230082, kSetBitrateMode = 0x1305, kVariable = 2;

/// A chirp with noise, so that each part differs from all others.
std::vector<std::int16_t> chirp(std::int64_t samples) {
  std::vector<std::int16_t> x(static_cast<std::size_t>(samples));
  std::uint32_t state = 1;
  for (std::size_t i = 0; i < x.size(); ++i) {
    state = state * 1664525u + 1013904223u;
    const double t = static_cast<double>(i) / kRate;
    x[i] = static_cast<std::int16_t>(9000 * std::sin(700 * t + 900 * t * t) +
                                     static_cast<double>(state >> 20) / 8);
  }
  return x;
}

class SoundLength : public testing::Test {
 protected:
  std::string written(const std::string& name, int format, const std::vector<std::int16_t>& x,
                      double quality = -1) {
    const std::string path = folder_ / name;
    SF_INFO info{};
    info.samplerate = kRate, info.channels = 1, info.format = format;
    SNDFILE* file = sf_open(path.c_str(), SFM_WRITE, &info);
    if (file == nullptr) return {};
    if (quality >= 0) {
      int mode = kVariable;
      sf_command(file, kSetBitrateMode, &mode, sizeof mode);
      sf_command(file, SFC_SET_COMPRESSION_LEVEL, &quality, sizeof quality);
    }
    for (std::size_t at = 0; at < x.size(); at += 1024)
      sf_writef_short(file, x.data() + at,
                      static_cast<sf_count_t>(std::min<std::size_t>(1024, x.size() - at)));
    sf_close(file);
    return test::read_bytes(path);
  }
  static std::vector<std::int16_t> all(AudioDecoder& decoder) {
    return decoder.read(0, decoder.frames(), {}, kRate).samples;
  }
  static AudioDecoder open(const std::string& bytes) {
    return AudioDecoder::from_memory({bytes.begin(), bytes.end()}, "sound");
  }
  /// Reads segments out of order, from one decoder and from new ones.
  static void expect_segments_equal_the_whole(const std::string& bytes,
                                              const std::vector<std::int16_t>& whole) {
    AudioDecoder kept = open(bytes);
    const auto frames = std::ssize(whole);
    for (const std::int64_t first :
         {frames - 700, frames / 2, INT64_C(0), frames / 3, INT64_C(5)}) {
      AudioDecoder fresh = open(bytes);
      for (AudioDecoder* decoder : {&kept, &fresh}) {
        const auto part = decoder->read(first, 700, {}, kRate).samples;
        EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first)) << first;
      }
    }
  }
  static void put(std::string& bytes, std::size_t at, std::uint64_t value, int size) {
    for (int b = 0; b < size; ++b)
      bytes[at + static_cast<std::size_t>(b)] = static_cast<char>(value >> (8 * b));
  }

  test::ScratchFolder folder_;
};

TEST_F(SoundLength, WavFromAPipeHasAllSamples) {
  const auto x = chirp(48001);
  const std::string right = written("a.wav", SF_FORMAT_WAV | SF_FORMAT_PCM_16, x);
  const std::size_t data = right.find("data") + 4;
  for (const std::uint64_t promised : {UINT64_C(0), UINT64_C(0xFFFFFFFF)})
    for (const std::uint64_t outer : {UINT64_C(0), UINT64_C(0xFFFFFFFF)}) {
      std::string bytes = right;
      put(bytes, data, promised, 4);
      put(bytes, 4, outer, 4);
      AudioDecoder decoder = open(bytes);
      EXPECT_EQ(all(decoder), x) << promised << ' ' << outer;
      expect_segments_equal_the_whole(bytes, x);
    }
  std::string bytes = right;
  put(bytes, data, 0, 4);
  AudioDecoder decoder = open(bytes);
  EXPECT_EQ(all(decoder), x) << "only the size of the data is missing";
}

// libsndfile takes the bytes of the tag from the end of the samples.
TEST_F(SoundLength, WavBehindAnId3TagHasAllSamples) {
  const auto x = chirp(4001);
  const std::string wav = written("a.wav", SF_FORMAT_WAV | SF_FORMAT_PCM_16, x);
  const std::string tag = std::string("ID3\x03\0\0\0\0\x01\x02", 10) + std::string(130, '\0');
  AudioDecoder decoder = open(tag + wav);
  EXPECT_EQ(all(decoder), x);
  expect_segments_equal_the_whole(tag + wav, x);
}

TEST_F(SoundLength, EmptyDataWithOtherChunksHasNoSamples) {
  std::string bytes = written("a.wav", SF_FORMAT_WAV | SF_FORMAT_PCM_16, chirp(100));
  const std::size_t data = bytes.find("data") + 4;
  bytes.resize(data + 4);
  put(bytes, data, 0, 4);
  bytes += std::string("LIST\x04\0\0\0INFO", 12);
  put(bytes, 4, bytes.size() - 8, 4);
  EXPECT_DATA_ERROR(open(bytes), "holds no samples");
}

TEST_F(SoundLength, Rf64WithoutSizesHasAllSamples) {
  const auto x = chirp(20000);
  std::string bytes = written("a.wav", SF_FORMAT_RF64 | SF_FORMAT_PCM_16, x);
  const std::size_t sizes = bytes.find("ds64") + 8;
  put(bytes, sizes, 0, 8), put(bytes, sizes + 8, 0, 8), put(bytes, sizes + 16, 0, 8);
  AudioDecoder decoder = open(bytes);
  EXPECT_EQ(all(decoder), x);
}

TEST_F(SoundLength, CafOfUnknownSizeHasAllSamples) {
  const auto x = chirp(20000);
  std::string bytes = written("a.caf", SF_FORMAT_CAF | SF_FORMAT_PCM_16, x);
  put(bytes, bytes.find("data") + 4, ~UINT64_C(0), 8);
  AudioDecoder decoder = open(bytes);
  EXPECT_EQ(all(decoder), x);
}

// 24 bits in containers of 32, at either end, with the three headers that writers give them.
TEST_F(SoundLength, BitsNarrowerThanTheirContainer) {
  const auto x = chirp(9000);
  std::string right = written("a.wav", SF_FORMAT_WAVEX | SF_FORMAT_PCM_32, x);
  const std::size_t format = right.find("fmt ") + 8, data = right.find("data") + 8;
  for (const bool low : {false, true})
    for (const bool valid_only : {false, true}) {
      std::string bytes = right;
      if (!valid_only) put(bytes, format + 14, 24, 2);
      put(bytes, format + 18, 24, 2);
      for (std::size_t i = 0; i < x.size(); ++i) {
        // One bit more than 16, so that neither end has only zeros.
        const std::int32_t wide = static_cast<std::int32_t>(x[i]) * 256 + 1;
        put(bytes, data + 4 * i, static_cast<std::uint32_t>(low ? wide : wide * 256), 4);
      }
      AudioDecoder decoder = open(bytes);
      ASSERT_EQ(decoder.frames(), 9000);
      EXPECT_EQ(all(decoder), x) << low << valid_only;
    }
  put(right, format + 12, 3, 2);  // 3 bytes for a sample of 32 bits
  EXPECT_DATA_ERROR(open(right), "its header gives 3 bytes to 1 samples of 32 bits");
}

TEST_F(SoundLength, FlacOfUnknownLengthIsCounted) {
  const auto x = chirp(50000);
  std::string bytes = written("a.flac", SF_FORMAT_FLAC | SF_FORMAT_PCM_16, x);
  // STREAMINFO: 36 bits of total samples end 16 bytes before its end.
  bytes[21] = static_cast<char>(bytes[21] & 0xF0);
  std::fill_n(bytes.begin() + 22, 4, '\0');
  AudioDecoder decoder = open(bytes);
  EXPECT_EQ(all(decoder), x);
  expect_segments_equal_the_whole(bytes, x);
}

TEST_F(SoundLength, SegmentsOfVorbisAndOpusEqualTheWhole) {
  const auto x = chirp(96000);
  for (const int format : {int{SF_FORMAT_VORBIS}, kOpus}) {
    const std::string bytes = written("a.ogg", SF_FORMAT_OGG | format, x);
    if (bytes.empty()) continue;
    AudioDecoder decoder = open(bytes);
    const auto whole = all(decoder);
    EXPECT_EQ(whole.size(), x.size());
    expect_segments_equal_the_whole(bytes, whole);
    AudioDecoder cut = open(bytes.substr(0, bytes.size() * 2 / 3));
    const auto begin = all(cut);
    EXPECT_GT(begin.size(), x.size() / 3);
    EXPECT_TRUE(std::equal(begin.begin(), begin.end() - 1000, whole.begin()));
    EXPECT_DATA_ERROR(open(bytes + bytes), "holds several Ogg recordings");
  }
}

#ifdef CHOIR_HAVE_MPG123
// libsndfile guesses the length from the size of the file.
TEST_F(SoundLength, Mp3OfAnyKindIsDecodedToItsEnd) {
  auto x = chirp(160000);
  std::fill_n(x.begin() + 40000, 80000, std::int16_t{0});  // few bytes: a guess is wrong
  const std::string tagged = written("a.mp3", kMp3, x, 0.5);
  if (tagged.empty()) GTEST_SKIP() << "this libsndfile writes no MP3";
  AudioDecoder known = open(tagged);
  EXPECT_EQ(known.frames(), 160000) << "its tag has the number of samples";
  const auto exact = all(known);
  expect_segments_equal_the_whole(tagged, exact);
  // The tag is a frame of its own; it ends where the next header begins.
  const std::string header = tagged.substr(0, 2);
  const std::string bare = tagged.substr(tagged.find(header, 4));
  AudioDecoder guessed = open(bare);
  EXPECT_GE(guessed.frames(), 160000);
  EXPECT_LT(guessed.frames(), 160000 + 3 * 1152) << "the encoder's delay and padding";
  expect_segments_equal_the_whole(bare, all(guessed));
  AudioDecoder twice = open(bare + bare);
  EXPECT_EQ(twice.frames(), 2 * guessed.frames());
  AudioDecoder cut = open(tagged.substr(0, tagged.size() / 2));
  EXPECT_LT(cut.frames(), 160000);
  EXPECT_EQ(std::ssize(all(cut)), cut.frames());
}
#endif

}  // namespace
}  // namespace choir
#endif
