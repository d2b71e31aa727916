#include "src/data/dialogues/dialogue_channels.hpp"

#include <gtest/gtest.h>
#include <cmath>

#include "choir/core/error.hpp"
#include "src/data/sampling/buckets.hpp"

namespace choir {
namespace {

using Ids = std::vector<std::int32_t>;

// Four counts of one recording that must not be confused.
TEST(FrameClock, CountsAsTheTableSays) {
  const FrameClock clock;
  const SpeechFrames encoder, causal{.causal = true};
  struct Row {
    double seconds;
    std::int64_t text, encoder, causal, codec;
  };
  for (const Row& row : {Row{0.0399, 0, 1, 2, 1}, Row{0.04, 1, 1, 2, 1}, Row{0.10, 1, 2, 3, 2},
                         Row{0.5, 6, 7, 8, 7}, Row{1.0, 13, 13, 14, 13}, Row{1.6, 20, 20, 21, 20},
                         Row{3.2, 40, 40, 41, 40}, Row{10.7, 134, 134, 135, 134}}) {
    const std::int64_t samples = clock.samples(row.seconds);
    EXPECT_EQ(clock.frames(samples), row.text) << row.seconds;
    EXPECT_EQ(encoder.frames(samples), row.encoder) << row.seconds;
    EXPECT_EQ(causal.frames(samples), row.causal) << row.seconds;
    EXPECT_EQ((samples + clock.hop() - 1) / clock.hop(), row.codec) << row.seconds;
  }
  EXPECT_EQ(FrameClock{.sample_rate = 22050}.hop(), 1764);
}

// 0.56 / 0.08 is 7.000000000000001 in floats: whole frames stay whole.
TEST(FrameClock, WholeFramesStayWhole) {
  for (const int rate : {16000, 22050, 48000}) {
    const FrameClock clock{.sample_rate = rate};
    for (std::int64_t n = 0; n < 1000; ++n)
      ASSERT_EQ(clock.frame_at(static_cast<double>(n) * 0.08), n) << rate;
  }
}

const DialogueControls kControls{};

FrameTurn turn_at(double begin, double end, Ids ids) {
  const FrameClock clock;
  return {clock.frame_at(begin), clock.frame_at(end), std::move(ids)};
}

TEST(TextChannel, TwoTurnsEach) {
  const std::vector<FrameTurn> user{turn_at(0, 0.32, {11, 12}), turn_at(0.8, 1.04, {13})};
  EXPECT_EQ(text_channel(user, 20, kControls).tokens,
            (Ids{1, 11, 12, 0, 2, 0, 0, 0, 0, 0, 1, 13, 0, 2, 0, 0, 0, 0, 0, 0}));
  const std::vector<FrameTurn> agent{turn_at(0.4, 0.72, {21, 22}),
                                     turn_at(1.12, 1.36, {23, 24, 25})};
  const TextChannel channel = text_channel(agent, 20, kControls);
  EXPECT_EQ(channel.tokens, (Ids{0, 0, 0, 0, 0, 1, 21, 22, 0, 2, 0, 0, 0, 0, 1, 23, 24, 2, 0, 0}));
  EXPECT_EQ(channel.cut, 1);
  EXPECT_EQ(channel.worst, 1);
  EXPECT_EQ(channel.worst_cut, 1);
  const auto said = turns_of(channel.tokens, kControls);
  ASSERT_EQ(said.size(), 2u);
  EXPECT_EQ(said[0], agent[0]);
  EXPECT_EQ(said[1], (FrameTurn{14, 17, {23, 24}}));
}

// If a turn of one frame has no room for its token, EOS is kept and the text is cut. In other cases
// EOS had cut the text, or a text the EOS.
TEST(TextChannel, EosIsNeverLost) {
  const std::vector<FrameTurn> turns{turn_at(0.3, 0.4, {7}), turn_at(0.6, 1.0, {9})};
  const TextChannel channel = text_channel(turns, 13, kControls);
  EXPECT_EQ(channel.tokens, (Ids{0, 0, 0, 0, 1, 2, 0, 0, 1, 9, 0, 0, 0})) << "the end is open";
  EXPECT_EQ(channel.cut, 1);
  // The second turn breaks into the first.
  const std::vector<FrameTurn> broken{{1, 9, {5, 6, 7, 8}}, {5, 8, {9}}};
  EXPECT_EQ(text_channel(broken, 10, kControls).tokens, (Ids{0, 1, 5, 6, 2, 1, 9, 0, 2, 0}));
  EXPECT_EQ(text_channel(broken, 10, kControls).cut, 2);
  // One directly behind the other: an EOS needs a frame of its own.
  const std::vector<FrameTurn> joined{{0, 3, {5}}, {3, 5, {6}}};
  EXPECT_EQ(text_channel(joined, 6, kControls).tokens, (Ids{1, 5, 2, 1, 6, 2}));
  // A turn of which nothing remains, and one behind the end.
  const std::vector<FrameTurn> gone{{1, 4, {5}}, {2, 4, {6}}, {7, 9, {7, 8}}};
  EXPECT_EQ(text_channel(gone, 6, kControls).tokens, (Ids{0, 0, 1, 6, 2, 0}));
  EXPECT_EQ(text_channel(gone, 6, kControls).cut, 3);
  EXPECT_EQ(text_channel(gone, 6, kControls).worst, 2);
}

TEST(TextChannel, EveryTurnEndsWhereverTheUserBreaksIn) {
  for (std::int64_t stop = 2; stop < 30; ++stop) {
    const std::vector<FrameTurn> turns{{1, stop, Ids(12, 9)}, {33, 36, {4}}};
    const TextChannel channel = text_channel(turns, 40, kControls);
    EXPECT_EQ(channel.tokens[static_cast<std::size_t>(stop)], kControls.eos);
    EXPECT_EQ(turns_of(channel.tokens, kControls)[0].ids.size() + 1,
              static_cast<std::size_t>(std::min<std::int64_t>(stop - 1, 13)));
    EXPECT_EQ(channel.cut, std::max<std::int64_t>(0, 12 - (stop - 2)));
  }
}

TEST(DialogueControls, MustDiffer) {
  EXPECT_NO_THROW((DialogueControls{0, 1, 2}.check(3)));
  EXPECT_THROW((DialogueControls{2, 1, 2}.check(3)), DeckError);
  EXPECT_THROW((DialogueControls{1, 1, 2}.check(3)), DeckError);
  EXPECT_THROW((DialogueControls{0, 1, 1}.check(3)), DeckError);
  EXPECT_THROW((DialogueControls{0, 1, 3}.check(3)), DeckError);
}

struct Steps {
  Ids text, text_targets, codes, code_targets;
  Steps(std::size_t rows, std::size_t books)
      : text(rows, 77), text_targets(text), codes(rows * books, 77), code_targets(codes) {}
  DialogueRows rows() { return {text, text_targets, codes, code_targets}; }
};

Ids first_book(const Ids& codes) {
  Ids book;
  for (std::size_t i = 0; i < codes.size(); i += 2) book.push_back(codes[i]);
  return book;
}

TEST(DialogueRows, TextLeadsCodesByAFrame) {
  const Ids text{0, 0, 0, 0, 0, 1, 21, 22, 0, 2, 0, 0, 0, 0, 1, 23, 24, 2, 0, 0};
  std::vector<std::uint16_t> codes;
  for (std::uint16_t t = 0; t < 20; ++t)
    for (std::uint16_t k = 0; k < 2; ++k) codes.push_back(static_cast<std::uint16_t>(10 * t + k));
  Steps exact(19, 2);
  fill_dialogue_rows(text, codes, kControls, CodeControls::behind(1000), exact.rows());
  EXPECT_EQ(exact.text, Ids(text.begin(), text.end() - 1));
  EXPECT_EQ(exact.text_targets, (Ids{0, 0, 0, 0, 1, 21, 22, 0, 2, 0, 0, 0, 0, 1, 23, 24, 2, 0, 0}));
  EXPECT_EQ(first_book(exact.codes), (Ids{1002, 0, 10, 20, 30, 40, 1000, 60, 70, 80, 1001, 100, 110,
                                          120, 130, 1000, 150, 160, 1001}));
  EXPECT_EQ(first_book(exact.code_targets), (Ids{0, 10, 20, 30, 40, 1000, 60, 70, 80, 1001, 100,
                                                 110, 120, 130, 1000, 150, 160, 1001, 180}));
  EXPECT_EQ(exact.code_targets[1], 1) << "the second codebook";
  EXPECT_EQ(exact.codes[1], 1002);
  // Eight of the labels are not padding; a uniform guess among 32 costs 19 ln 32, and with a weight
  // of 0.3 for padding the number of the worked example.
  double weighted = 0;
  for (const std::int32_t id : exact.text_targets) weighted += (id == 0 ? 0.3 : 1) * std::log(32.0);
  EXPECT_NEAR(weighted, 39.162816, 1e-6 / 2);

  Steps padded(22, 2);
  fill_dialogue_rows(text, codes, kControls, CodeControls::behind(1000), padded.rows());
  for (std::size_t r = 0; r < 22; ++r) {
    EXPECT_EQ(padded.text[r], r < 19 ? exact.text[r] : 0);
    EXPECT_EQ(padded.text_targets[r], r < 19 ? exact.text_targets[r] : kNoTarget);
    EXPECT_EQ(padded.codes[2 * r], r < 19 ? exact.codes[2 * r] : 0);
    EXPECT_EQ(padded.code_targets[2 * r + 1], r < 19 ? exact.code_targets[2 * r + 1] : kNoTarget);
  }
  Steps none(3, 2);  // a damaged dialogue
  fill_dialogue_rows({}, {}, kControls, CodeControls::behind(1000), none.rows());
  EXPECT_EQ(none.text_targets, Ids(3, kNoTarget));
  EXPECT_EQ(none.code_targets, Ids(6, kNoTarget));
  Steps few(18, 2);
  EXPECT_THROW(fill_dialogue_rows(text, codes, kControls, CodeControls::behind(1000), few.rows()),
               Error);
}

}  // namespace
}  // namespace choir
