#include "src/data/speech/speech_corpus.hpp"

#include "test/unit/data/packed_speech.hpp"

namespace choir {
namespace {

using test::PackedSpeech;
using test::ScratchFolder;

// A hop of 10 ms at 1,000 Hz and subsampling by 8: 80 ms per frame.
constexpr SpeechFrames kFramesOfSift{10, 3, false};

SpeechSift sift_of(const PackedSpeech& speech, const SpeechFilter& filter, bool validation,
                   std::vector<SpeechItem>& kept, const std::vector<std::int32_t>& damaged = {}) {
  speech.write();
  const auto catalog = AudioCatalog::open(speech.folder);
  const auto labels = LabelFile::open(speech.folder, "test", catalog.hash());
  SpeechSift sift(filter, kFramesOfSift, validation);
  sift.add(0, catalog, labels, damaged, kept);
  return sift;
}

TEST(SpeechFrames, HalvingsOfTime) {
  const SpeechFrames offline{160, 3, false}, causal{160, 3, true};
  EXPECT_EQ(offline.after(0, 16000), 100);
  EXPECT_EQ(offline.frames(16000), 13);  // 100, 50, 25, 13
  EXPECT_EQ(offline.frames(159), 0);
  EXPECT_EQ(causal.frames(16000), 14);  // 100, 51, 26, 14
  EXPECT_EQ(causal.frames(159), 0);
  EXPECT_EQ(offline.frames(160), 1);
  EXPECT_EQ(offline.multiple(), 1280);
  EXPECT_EQ(offline.padded(0), 1280);
  EXPECT_EQ(offline.padded(1281), 2560);
}

TEST(SpeechFilter, CtcNeedsABlankBetweenEqualNeighbours) {
  const std::int32_t ids[] = {3, 3, 4, 4, 4, 3};
  EXPECT_EQ(ctc_frames(ids), 6 + 3);
  EXPECT_EQ(ctc_frames({}), 0);
}

TEST(SpeechFilter, EveryReasonIsCountedAndNothingIsLost) {
  const ScratchFolder scratch;
  PackedSpeech speech{scratch / "a"};
  speech.utterances = 200;
  speech.bad = {3, 50};
  speech.crowded = {7};
  SpeechFilter filter;
  filter.min_duration = 1;
  filter.max_duration = 3;
  filter.min_labels_per_second = 0.5;
  std::vector<std::int32_t> damaged(200, 0);
  damaged[11] = 1;
  std::vector<SpeechItem> kept;
  const SpeechSift sift = sift_of(speech, filter, false, kept, damaged);
  std::int64_t too_short = 0, too_long = 0, few = 0;
  for (std::int64_t u = 0; u < 200; ++u) {
    const auto n = static_cast<double>(speech.labels(u).size());
    const auto samples = static_cast<double>(speech.samples(u));
    if (samples < 1000)
      ++too_short;
    else if (samples > 3000)
      ++too_long;
    else if (u != 3 && u != 50 && u != 11 && n * 1000 / samples < 0.5)
      ++few;
  }
  EXPECT_GT(too_short, 0);
  EXPECT_GT(few, 0);
  EXPECT_EQ(sift.count(LeftOut::too_short), too_short);
  EXPECT_EQ(sift.count(LeftOut::too_long), too_long);
  EXPECT_EQ(sift.count(LeftOut::few_labels), few);
  EXPECT_EQ(sift.count(LeftOut::bad_text), 2);
  EXPECT_EQ(sift.count(LeftOut::damaged), 1);
  EXPECT_EQ(sift.count(LeftOut::ctc_impossible), 1);
  EXPECT_EQ(sift.bad(), 4);
  EXPECT_EQ(sift.kept() + too_short + too_long + few + 4, sift.total());
  EXPECT_EQ(std::ssize(kept), sift.kept());
  const std::string text = sift.to_string();
  EXPECT_NE(text.find("text with characters outside the vocabulary; first utterance 3 of"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("400 labels with 0 repeats"), std::string::npos) << text;
}

// Error rates compare texts, so validation keeps utterances whose text has no labels.
TEST(SpeechFilter, ValidationKeepsTextsWithoutLabels) {
  const ScratchFolder scratch;
  PackedSpeech speech{scratch / "a"};
  speech.utterances = 40;
  speech.bad = {3, 30};
  std::vector<SpeechItem> kept;
  const SpeechSift sift = sift_of(speech, {}, true, kept);
  EXPECT_EQ(sift.count(LeftOut::bad_text), 2);
  EXPECT_EQ(sift.bad(), 0);
  EXPECT_NO_THROW(sift.require(OnBad::stop, 0.01, "it"));
  ASSERT_EQ(kept.size(), 40u);
  EXPECT_EQ(kept[3].labels, 0);
  EXPECT_NE(sift.to_string().find("counted 2 ("), std::string::npos) << sift.to_string();
}

TEST(SpeechFilter, BadOnesStopOrAreFew) {
  const ScratchFolder scratch;
  PackedSpeech speech{scratch / "a"};
  speech.utterances = 200;
  speech.bad = {3, 50};
  std::vector<SpeechItem> kept;
  const SpeechSift two = sift_of(speech, {}, false, kept);
  EXPECT_DATA_ERROR(two.require(OnBad::stop, 0.01, "it"), "2 of the 200 utterances of it are bad");
  EXPECT_NO_THROW(two.require(OnBad::skip, 0.01, "it"));  // exactly 1 %
  speech.bad = {3, 50, 51};
  const SpeechSift three = sift_of(speech, {}, false, kept);
  EXPECT_DATA_ERROR(three.require(OnBad::skip, 0.01, "it"), "1.50 %, more than 1 %");
  SpeechFilter none;
  none.min_duration = 100;
  const SpeechSift nothing = sift_of(speech, none, false, kept);
  EXPECT_DATA_ERROR(nothing.require(OnBad::skip, 0.01, "it"),
                    "none of the 200 utterances of it is left");
}

// An utterance that is impossible at 8x and possible at 2x is reported with its cure; validation
// keeps it.
TEST(SpeechFilter, ImpossibleCtcNamesItsCure) {
  const ScratchFolder scratch;
  PackedSpeech speech{scratch / "a"};
  speech.utterances = 40;
  speech.crowded = {7};
  std::vector<SpeechItem> kept;
  const SpeechSift sift = sift_of(speech, {}, false, kept);
  try {
    sift.require(OnBad::stop, 0.01, "it");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_EQ(error.hint(),
              "CTC needs a frame for each label, and model.subsampling=8 keeps one frame of 8; too "
              "few are left for 1 with model.subsampling=4, 1 with model.subsampling=2; larger "
              "units (data.labels=bpe_256) need fewer frames, and longer recordings have more; "
              "data.on_bad=skip leaves out up to 1 % of the utterances");
  }
  kept.clear();
  const SpeechSift validation = sift_of(speech, {}, true, kept);
  EXPECT_EQ(validation.kept(), 40);
  EXPECT_EQ(validation.count(LeftOut::ctc_impossible), 1);
  EXPECT_NO_THROW(validation.require(OnBad::stop, 0.01, "it"));
  EXPECT_THROW(on_bad_of("ignore", "data.on_bad"), DeckError);
}

}  // namespace
}  // namespace choir
