// Tests that dialogues that are held together, with whole recordings, are equal to those that a
// talker holds one by one as the sound arrives.
#include "src/models/duplex/evaluation.hpp"

#include <gtest/gtest.h>

#include "src/models/duplex/talker.hpp"
#include "test/unit/models/duplex/duplex_case.hpp"

namespace choir::test {
namespace {

constexpr DialogueControls kControls{.pad = 29, .bos = 30, .eos = 31};
const std::vector<Dialogue> kDialogues{{.id = 3, .frames = 11},
                                       {.id = 4, .frames = 17},
                                       {.id = 5, .frames = 6},
                                       {.id = 6, .frames = 17}};

std::vector<std::int64_t> frames_of(const std::vector<Dialogue>& dialogues) {
  std::vector<std::int64_t> frames;
  for (const Dialogue& d : dialogues) frames.push_back(d.frames);
  return frames;
}

SaidDialogue talked(Talking& model, const Dialogue& dialogue) {
  const ModelBatch batch = model.batch({dialogue});
  DuplexTalker talker(model.instance(), kControls);
  SaidDialogue said;
  std::span<const std::int16_t> audio(static_cast<const std::int16_t*>(batch["audio"].data),
                                      static_cast<std::size_t>(batch["audio"].shape[1]));
  const auto take = [&] {
    while (talker.ready())
      for (const AgentFrame& frame : talker.next()) {
        if (frame.frame >= dialogue.frames) continue;
        said.text.push_back(frame.text);
        said.codes.insert(said.codes.end(), frame.codes.begin(), frame.codes.end());
      }
  };
  while (!audio.empty()) {
    const auto count = std::min(audio.size(), static_cast<std::size_t>(talker.room()));
    talker.push(audio.first(count));
    audio = audio.subspan(count);
    take();
  }
  talker.end();
  take();
  return said;
}

TEST(DialogueGroup, SaysWhatATalkerSaysInEachDialogue) {
  Talking model(small_duplex());
  DialogueGroup group(model.instance(), kControls);
  const std::vector<std::int64_t> rows{0, 1, 2, 3}, frames = frames_of(kDialogues);
  const auto said = group.talk(model.batch(kDialogues, 0, true), rows, frames);
  ASSERT_EQ(said.size(), kDialogues.size());
  for (std::size_t i = 0; i < said.size(); ++i) {
    const SaidDialogue alone = talked(model, kDialogues[i]);
    EXPECT_EQ(said[i].text, alone.text) << i;
    EXPECT_EQ(said[i].codes, alone.codes) << i;
    EXPECT_EQ(said[i].text.front(), kControls.pad);
  }
  EXPECT_NE(said[1].codes, said[3].codes) << "they hear different users";
}

TEST(DialogueGroup, HoldsSomeOfAMicroBatch) {
  Talking model(small_duplex());
  DialogueGroup group(model.instance(), kControls);
  const std::vector<std::int64_t> rows{0, 1, 2, 3}, frames = frames_of(kDialogues);
  const auto all = group.talk(model.batch(kDialogues), rows, frames);
  const std::vector<std::int64_t> some{3, 1}, lengths{17, 17};
  const auto two = group.talk(model.batch(kDialogues), some, lengths);
  EXPECT_EQ(two[0].codes, all[3].codes);
  EXPECT_EQ(two[1].text, all[1].text);
  EXPECT_TRUE(group.talk(model.batch(kDialogues), {}, {}).empty());
}

// ... and a talker continues: its first words are those that it would speak in a shorter dialogue,
// and the plan of its memory is that of any dialogue.
TEST(DialogueGroup, ATalkerHasNoEnd) {
  Talking model(small_duplex());
  const std::int64_t block = model.config().lm.block_size;
  const Dialogue shorter{.id = 8, .frames = block - 2}, longer{.id = 8, .frames = 3 * block};
  const SaidDialogue first = talked(model, shorter), all = talked(model, longer);
  ASSERT_EQ(std::ssize(all.text), 3 * block);
  EXPECT_TRUE(std::equal(first.text.begin(), first.text.end(), all.text.begin()));
  DuplexConfig learns = small_duplex();
  learns.lm.position = Position::learned;
  Talking ends(learns);
  EXPECT_THROW(talked(ends, longer), DeckError);
}

// The last row of the longest dialogue has no position: it is not learnt either.
TEST(DialogueGroup, ADialogueMayHaveAFrameMoreThanPositions) {
  const DuplexConfig config = small_duplex();
  Talking model(config);
  DialogueGroup group(model.instance(), kControls);
  const std::int64_t frames = config.lm.block_size + 1, row = 0;
  const auto said = group.talk(model.batch({{.id = 8, .frames = frames}}), {&row, 1}, {&frames, 1});
  ASSERT_EQ(std::ssize(said.front().text), frames);
  ASSERT_EQ(std::ssize(said.front().codes), frames * config.codebooks);
  EXPECT_EQ(said.front().codes.back(), config.delay_code()) << "silence";
}

}  // namespace
}  // namespace choir::test
