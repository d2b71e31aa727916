// Tests of transcription: windows give the result of the whole, texts do not depend on each other,
// and memory limits are kept.
#include "src/models/fastconformer/transcriber.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "choir/models/family.hpp"
#include "choir_features.hpp"
#include "kernels/cpu/ref_element.hpp"
#include "src/device/cpu_device.hpp"
#include "test/support/wav_file.hpp"
#include "test/unit/models/fastconformer/random_model.hpp"

namespace choir::test {
namespace {

FastConformerConfig small_conformer() {
  FastConformerConfig c{.n_layer = 2,
                        .n_embd = 16,
                        .n_head = 4,
                        .conv_kernel = 5,
                        .subsampling = 4,
                        .subsampling_channels = 8,
                        .vocab_size = 6,
                        .normalise = false};
  c.mel.sample_rate = 8000, c.mel.window = 200, c.mel.hop = 80, c.mel.fft = 256, c.mel.mels = 16;
  return c;
}

FastConformerConfig regular(std::int64_t left, std::int64_t right) {
  FastConformerConfig c = small_conformer();
  c.left_context = left, c.right_context = right;
  return c;
}

FastConformerConfig chunked(std::int64_t left, std::int64_t right, bool causal) {
  FastConformerConfig c = regular(left, right);
  c.context_style = ContextStyle::chunked, c.causal = causal;
  return c;
}

Vocabulary letters() {
  return train_vocabulary({.type = "char"}, {"a b c d e"});
}

TEST(SpeechWindows, KeptFramesFollowOnOneAnother) {
  for (const std::int64_t frames : {1, 39, 40, 41, 100, 1003}) {
    const WindowPlan plan{.frames = 40, .left = 8, .right = 4};
    std::int64_t at = 0;
    for (const RecordingWindow& w : windows_of(plan, frames, 4)) {
      EXPECT_EQ(w.keep_first, at);
      EXPECT_LE(w.end - w.first, 40);
      EXPECT_EQ(w.first % 4, 0);
      EXPECT_TRUE(w.first == 0 || w.keep_first - w.first >= 8);
      EXPECT_TRUE(w.end == frames || w.end - w.keep_end >= 4);
      at = w.keep_end;
    }
    EXPECT_EQ(at, frames);
  }
}

TEST(SpeechWindows, UnlimitedContextIsNeverExact) {
  EXPECT_EQ(reach_of(small_conformer()).left, SpeechReach::kAll);
  const WindowPlan plan = plan_windows(small_conformer(), 400, 400);
  EXPECT_EQ(plan.frames, 400);
  EXPECT_EQ(plan.left, 50);
  EXPECT_FALSE(plan.exact);
  FastConformerConfig normalised = regular(3, 2);
  normalised.normalise = true;
  EXPECT_TRUE(plan_windows(regular(3, 2), 400, 400).exact);
  EXPECT_FALSE(plan_windows(normalised, 400, 400).exact);
  // The reach needs longer windows, but memory decides.
  EXPECT_EQ(plan_windows(regular(300, 2), 400, 1 << 15).frames, 4 * reach_of(regular(300, 2)).left);
  EXPECT_FALSE(plan_windows(regular(300, 2), 400, 400).exact);
}

TEST(SpeechWindows, OfLimitedContextAreTheWhole) {
  for (const FastConformerConfig& c :
       {regular(3, 2), chunked(4, 1, true), chunked(3, 2, false), regular(5, 0)}) {
    RandomModel model(c, "fp64", std::size_t{64} << 20);
    const WindowPlan plan = plan_windows(c, 1, 1 << 15);
    ASSERT_TRUE(plan.exact);
    const std::int64_t unit = c.mel.hop * c.subsampling;
    const auto audio = tones(8000, static_cast<double>(3 * plan.frames * unit + 77) / 8000, 4);
    const std::int64_t frames = c.frames(std::ssize(audio)), symbols = c.vocab_size + 1;
    const std::vector<double> whole = model.logits(audio);
    const auto windows = windows_of(plan, frames, reach_of(c).align);
    ASSERT_GT(windows.size(), 2u);
    for (const RecordingWindow& w : windows) {
      const std::int64_t end = w.end == frames ? std::ssize(audio) : w.end * unit;
      const std::vector<double> part =
          model.logits(std::span(audio).subspan(static_cast<std::size_t>(w.first * unit),
                                                static_cast<std::size_t>(end - w.first * unit)));
      double most = 0;
      for (std::int64_t t = w.keep_first; t < w.keep_end; ++t)
        for (std::int64_t v = 0; v < symbols; ++v)
          most =
              std::max(most, std::abs(part[static_cast<std::size_t>((t - w.first) * symbols + v)] -
                                      whole[static_cast<std::size_t>(t * symbols + v)]));
      EXPECT_LT(most, 1e-11) << w.keep_first;
    }
  }
}

TEST(TranscriptionPlan, KeepsToTheMemory) {
  const auto options = options_of(small_conformer(), "fp32");
  const auto plan = [&](double budget, std::int64_t batch) {
    return plan_transcription(options, Layout(1, 1, 1, 1), 0, {.batch = batch}, budget, nullptr);
  };
  const TranscriptionPlan large = plan(1e9, 16), small = plan(4e6, 16);
  EXPECT_EQ(large.windows.frames, 1500);  // 60 s
  EXPECT_LT(small.windows.frames, 1500);
  EXPECT_LE(small.total_bytes, 4000000u);
  EXPECT_EQ(plan(4e6, 1).windows.frames, small.windows.frames) << "windows depend on the batch";
  EXPECT_GT(large.rows_for(10), 1);
  EXPECT_EQ(plan(1e9, 1).rows_for(10), 1);
  EXPECT_THROW(plan(1e4, 1), DeckError);
  for (std::size_t i = 1; i < large.limits.size(); ++i)
    EXPECT_LE(large.limits[i].frames, large.limits[i - 1].frames);
}

TEST(TranscriptMaker, BestSymbolsAndBeam) {
  const Vocabulary vocabulary = letters();
  // a a _ b space c: 0.08 s each.
  const auto ids = vocabulary.try_encode("ab c").ids;
  const std::vector<int> best{ids[0], ids[0], 6, ids[1], ids[2], ids[3]};
  for (const std::int64_t beam : {0, 4}) {
    const TranscriptMaker maker(vocabulary, 0.08, beam);
    std::vector<float> logits(best.size() * 7, 0.0f);
    for (std::size_t t = 0; t < best.size(); ++t)
      logits[t * 7 + static_cast<std::size_t>(best[t])] = 12.0f;
    TranscriptMaker::Frames frames;
    maker.add(frames, logits, 7);
    Transcript transcript{.seconds = 0.47};
    maker.finish(frames, transcript);
    EXPECT_EQ(transcript.text, "ab c");
    ASSERT_EQ(transcript.words.size(), 2u);
    EXPECT_EQ(transcript.words[0].text, "ab");
    EXPECT_DOUBLE_EQ(transcript.words[0].start, 0);
    EXPECT_DOUBLE_EQ(transcript.words[0].end, 4 * 0.08);
    EXPECT_DOUBLE_EQ(transcript.words[1].end, 0.47);
    logits[3] = std::nanf("");
    EXPECT_THROW(maker.add(frames, logits, 7), NumericError);
  }
}

#ifdef CHOIR_HAVE_SNDFILE
class TranscribedFiles : public testing::Test {
 protected:
  TranscribedFiles() {
    int seed = 0;
    for (const double seconds : {0.9, 4.1, 0.31, 2.0, 11.0, 0.005, 1.3, 0.9}) {
      RecordingSource& source = sources_.emplace_back();
      source.path = testing::TempDir() + "transcriber_" + std::to_string(seed) + ".wav";
      write_wav(source.path, 8000, 1, tones(8000, seconds, seed++));
    }
  }
  ~TranscribedFiles() override {
    for (const RecordingSource& source : sources_) std::filesystem::remove(source.path);
  }

  std::vector<Transcript> transcribe(const std::vector<RecordingSource>& sources,
                                     std::int64_t batch, double window, std::int64_t beam = 0) {
    const FastConformerConfig c = small_conformer();
    const TranscriptionPlan plan =
        plan_transcription(options_of(c, "fp32"), Layout(1, 1, 1, 1), 0,
                           {.window_seconds = window, .batch = batch}, 1e9, nullptr);
    RandomModel model(c, "fp32", plan.arena_bytes);
    return Transcriber(model.instance, letters(), plan, beam).transcribe(sources, OnBad::skip);
  }
  std::vector<RecordingSource> sources_;
};

TEST_F(TranscribedFiles, OrderAndBatchChangeNothing) {
  for (const double window : {60.0, 3.0}) {
    const auto expected = transcribe(sources_, 1, window);
    EXPECT_GT(expected[4].text.size(), 20u);
    EXPECT_NE(expected[0].text, expected[7].text);
    for (const std::int64_t batch : {2, 3, 16}) {
      std::vector<std::size_t> order(sources_.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::rotate(order.begin(), order.begin() + batch % 7, order.end());
      if (batch == 3) std::reverse(order.begin(), order.end());
      std::vector<RecordingSource> shuffled;
      for (const std::size_t i : order) shuffled.push_back(sources_[i]);
      const auto result = transcribe(shuffled, batch, window);
      for (std::size_t i = 0; i < order.size(); ++i) {
        EXPECT_EQ(result[i].text, expected[order[i]].text) << batch;
        EXPECT_EQ(result[i].words, expected[order[i]].words) << batch;
      }
    }
  }
}

TEST_F(TranscribedFiles, TooShortIsSaidAndBadIsLeftOut) {
  auto sources = sources_;
  sources[1].path += ".missing";
  const auto result = transcribe(sources, 4, 60);
  EXPECT_EQ(result[5].text, "");
  EXPECT_NE(result[5].note.find("too short: 40 samples"), std::string::npos);
  EXPECT_NE(result[1].fault.find("cannot open"), std::string::npos);
  EXPECT_EQ(result[4].text, transcribe(sources_, 4, 60)[4].text);
  EXPECT_DOUBLE_EQ(result[4].seconds, 11.0);
}
#endif

}  // namespace
}  // namespace choir::test
