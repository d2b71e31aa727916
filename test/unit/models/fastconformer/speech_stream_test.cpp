// Tests of streams: chunk by chunk the result is that of the whole, in the planned memory.
#include "src/models/fastconformer/speech_stream.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "choir_features.hpp"
#include "kernels/cpu/ref_element.hpp"
#include "src/device/cpu_device.hpp"
#include "src/models/fastconformer/stream_transcriber.hpp"
#include "test/support/wav_file.hpp"
#include "test/unit/models/fastconformer/random_model.hpp"

namespace choir::test {
namespace {

/// Attention in chunks of `chunk` frames that see `left` chunks before their own.
FastConformerConfig streaming(std::int64_t subsampling, std::int64_t chunk, std::int64_t left) {
  FastConformerConfig c{.n_layer = 3,
                        .n_embd = 16,
                        .n_head = 4,
                        .conv_kernel = 5,
                        .subsampling = subsampling,
                        .subsampling_channels = 8,
                        .causal = true,
                        .context_style = ContextStyle::chunked,
                        .left_context = chunk * left,
                        .right_context = chunk - 1,
                        .vocab_size = 6,
                        .normalise = false};
  c.mel.sample_rate = 8000, c.mel.window = 200, c.mel.hop = 80, c.mel.fft = 256, c.mel.mels = 16;
  return c;
}

const Layout kOne(1, 1, 1, 1);

void append(std::vector<double>& values, const Tensor& logits, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(ref::load(logits.data, logits.dtype, i));
}

/// Logits of the whole recording, computed at once.
std::vector<double> whole(const FastConformerConfig& c, std::span<const std::int16_t> audio) {
  RandomModel model(c, "fp64", std::size_t{64} << 20);
  HostBatch host(c, {.samples = 1, .audio_samples = std::ssize(audio), .labels = 1});
  std::copy(audio.begin(), audio.end(), static_cast<std::int16_t*>(host.batch["audio"].data));
  const Tensor logits = model.instance.forward(Mode::generate, host.batch);
  std::vector<double> values;
  append(values, logits, c.frames(std::ssize(audio)) * (c.vocab_size + 1));
  return values;
}

/// The logits chunk by chunk, in exactly the planned memory.
class Streamed {
 public:
  Streamed(const FastConformerConfig& c, const char* precision)
      : plan_(plan_stream(options_of(c, precision), kOne, 0, 1e9, nullptr)),
        model_(c, precision, plan_.arena_bytes) {
    model_.instance.arena().set_requests(plan_.requests);
    stream_ = std::make_unique<SpeechStream>(model_.instance);
  }
  /// Audio arrives `piece` samples at a time.
  std::vector<double> operator()(std::span<const std::int16_t> audio, std::size_t piece) {
    std::vector<double> values;
    const auto take = [&] {
      while (stream_->ready()) {
        const Tensor logits = stream_->next();
        append(values, logits, logits.count());
      }
    };
    stream_->begin();
    while (!audio.empty()) {
      const auto count = std::min({audio.size(), piece, static_cast<std::size_t>(stream_->room())});
      stream_->push(audio.first(count));
      audio = audio.subspan(count);
      take();
    }
    stream_->end();
    take();
    return values;
  }

 private:
  StreamPlan plan_;
  RandomModel model_;
  std::unique_ptr<SpeechStream> stream_;
};

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double most = 0, largest = 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(a[i]));
  }
  return most / largest;
}

TEST(SpeechStream, ChunkByChunkIsTheWhole) {
  for (const std::int64_t s : {2, 4, 8})
    for (const auto& [chunk, left] : {std::pair<int, int>{1, 3}, {2, 0}, {3, 2}, {7, 1}, {16, 2}}) {
      const FastConformerConfig c = streaming(s, chunk, left);
      Streamed streamed(c, "fp64");
      const std::int64_t unit = c.mel.hop * s;
      // Many chunks, ends at any position in them, less than one chunk, one frame, none.
      for (const std::int64_t samples :
           {(6 * left + 9) * chunk * unit / 2 + 77, 3 * chunk * unit, 3 * chunk * unit + 79,
            2 * chunk * unit + 81, 1 * unit + 128, unit / 2, std::int64_t{80}}) {
        const auto audio = tones(8000, static_cast<double>(samples) / 8000, static_cast<int>(s));
        ASSERT_LT(difference(whole(c, audio), streamed(audio, 1000)), 1e-12)
            << "subsampling " << s << ", chunks of " << chunk << ", " << left << " before, "
            << samples << " samples";
      }
      EXPECT_TRUE(streamed(tones(8000, 79.0 / 8000, 1), 1000).empty());
    }
}

TEST(SpeechStream, OtherTransformsAndKernels) {
  // Several steps of the features in half a transform, and none; a kernel wider than a chunk of one
  // frame.
  for (const auto& [fft, hop, kernel] : {std::array{512, 40, 9}, {256, 256, 1}, {256, 150, 31}}) {
    FastConformerConfig c = streaming(4, 3, 1);
    c.mel.fft = fft, c.mel.hop = hop, c.conv_kernel = kernel;
    Streamed streamed(c, "fp64");
    for (const int samples : {9001, 30000, 30111}) {
      const auto audio = tones(8000, static_cast<double>(samples) / 8000, 5);
      EXPECT_LT(difference(whole(c, audio), streamed(audio, 777)), 1e-12) << fft << " " << hop;
    }
  }
}

TEST(SpeechStream, HowAudioComesAndWhatWasBeforeChangeNothing) {
  const FastConformerConfig c = streaming(8, 4, 2);
  Streamed streamed(c, "fp32");
  const auto audio = tones(8000, 9.03, 3);
  const std::vector<double> expected = streamed(audio, 100000);
  streamed(tones(8000, 3.3, 4), 5000);
  EXPECT_EQ(streamed(audio, 1), expected);
  EXPECT_EQ(streamed(audio, 3001), expected);
}

TEST(SpeechStream, SeesNothingBehindItsChunk) {
  const FastConformerConfig c = streaming(4, 4, 2);
  const SpeechChunks chunks(c);
  auto audio = tones(8000, 5, 3);
  Streamed streamed(c, "fp64");
  const auto before = streamed(audio, 1000);
  const auto end = static_cast<std::size_t>(chunks.audio_end(4));
  for (std::size_t i = end; i < audio.size(); ++i) audio[i] = static_cast<std::int16_t>(-audio[i]);
  const auto after = streamed(audio, 1000);
  const auto heard = static_cast<std::size_t>(5 * 4 * (c.vocab_size + 1));
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(heard),
                         after.begin()));
  EXPECT_FALSE(std::equal(before.begin(), before.end(), after.begin()));
  // 3 frames of 40 ms and half a transform of 32 ms.
  EXPECT_EQ(chunks.latency_samples(), 3 * 320 + 128);
}

TEST(SpeechStream, MemoryIsThatOfTheContext) {
  const auto options = options_of(streaming(4, 4, 2), "fp32");
  const StreamPlan plan = plan_stream(options, kOne, 0, 1e9, nullptr);
  EXPECT_GT(plan_stream(options_of(streaming(4, 4, 40), "fp32"), kOne, 0, 1e9, nullptr).arena_bytes,
            plan.arena_bytes);
  EXPECT_THROW(plan_stream(options, kOne, 0, static_cast<double>(plan.total_bytes) - 1, nullptr),
               DeckError);
}

TEST(SpeechStream, KeysThatAreAgainstIt) {
  FastConformerConfig c = streaming(8, 4, 2);
  EXPECT_TRUE(keys_against_streaming(c).empty());
  c.left_context = -1, c.conv_norm = ConvNorm::batchnorm;
  EXPECT_EQ(
      keys_against_streaming(c),
      (std::vector<std::string>{"model.left_context = -1", "model.conv_norm = \"batchnorm\""}));
  EXPECT_EQ(keys_against_streaming({}),
            (std::vector<std::string>{"model.causal = false", "model.context_style = \"regular\"",
                                      "model.left_context = -1", "model.normalise = true"}));
}

#ifdef CHOIR_HAVE_SNDFILE
TEST(StreamTranscriber, TextOfFilesIsThatOfTheWhole) {
  const FastConformerConfig c = streaming(4, 5, 3);
  const Vocabulary vocabulary = train_vocabulary({.type = "char"}, {"a b c d e"});
  std::vector<RecordingSource> sources;
  for (const double seconds : {0.9, 31.0, 0.005, 2.0}) {
    sources.emplace_back().path =
        testing::TempDir() + "stream_" + std::to_string(sources.size()) + ".wav";
    write_wav(sources.back().path, 8000, 1, tones(8000, seconds, static_cast<int>(seconds)));
  }
  for (const std::int64_t beam : {0, 4}) {
    const TranscriptionPlan windows =
        plan_transcription(options_of(c, "fp32"), kOne, 0, {.window_seconds = 10}, 1e9, nullptr);
    ASSERT_TRUE(windows.windows.exact);
    RandomModel model(c, "fp32", windows.arena_bytes);
    const auto expected =
        Transcriber(model.instance, vocabulary, windows, beam).transcribe(sources, OnBad::skip);
    const StreamPlan plan = plan_stream(options_of(c, "fp32"), kOne, 0, 1e9, nullptr);
    RandomModel other(c, "fp32", plan.arena_bytes);
    other.instance.arena().set_requests(plan.requests);
    StreamTranscriber transcriber(other.instance, vocabulary, beam);
    std::size_t chunks = 0;
    const auto result = transcriber.transcribe(
        sources, OnBad::skip, [&](std::size_t, double, const std::string&) { ++chunks; });
    ASSERT_EQ(result.size(), expected.size());
    EXPECT_GT(result[0].text.size() + result[3].text.size(), 10u);
    std::size_t timed = 0;
    for (std::size_t i = 0; i < result.size(); ++i) {
      EXPECT_EQ(result[i].text, expected[i].text);
      EXPECT_EQ(result[i].words, expected[i].words);
      EXPECT_EQ(result[i].seconds, expected[i].seconds);
      timed += result[i].chunk_seconds.size();
    }
    EXPECT_EQ(timed, chunks);
    EXPECT_EQ(result[1].chunk_seconds.size(), 156u);  // 3,100 features, 776 frames
    EXPECT_NE(result[2].note.find("too short: 40 samples"), std::string::npos);
  }
  for (const RecordingSource& source : sources) std::filesystem::remove(source.path);
}
#endif

}  // namespace
}  // namespace choir::test
