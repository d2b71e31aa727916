#include "src/train/loop/resume_point.hpp"

#include "src/run/run_setup.hpp"
#include "test/support/has.hpp"
#include "test/unit/train/deck_case.hpp"

namespace choir {
namespace {

using test::has;
using test::small_deck;

constexpr const char* kContents = "train 900 tokens 0000abcd, validation 100 tokens 00001234";

/// The checkpoint that a run of this deck would leave.
ResumePoint left_by(const Deck& deck, const std::string& contents = kContents) {
  return {.checkpoint = {.path = "runs/a/checkpoints/step_00000010", .manifest = {.step = 10}},
          .meta = {.deck = resolved_json(deck), .vocab_size = 64, .contents = contents}};
}

template <class Action>
std::string refusal(const Action& action) {
  try {
    action();
  } catch (const DeckError& error) {
    return std::string(error.what()) + "\n" + error.hint();
  }
  return {};
}

/// The message with which a run is refused that was started without `overrides` and is resumed with
/// them.
std::string refusal_of_change(const std::vector<std::string>& overrides) {
  return refusal([&] { require_allowed(left_by(small_deck()), small_deck(overrides)); });
}

TEST(Resume, AnotherModelSeedOrSplitIsRefusedByKey) {
  EXPECT_EQ(refusal_of_change({}), "");
  for (const auto& [change, said] : std::vector<std::pair<std::string, std::string>>{
           {"model.n_layer=3", "model.n_layer: "},
           {"model.dropout=0.25", "model.dropout: "},
           {"run.seed=7", "run.seed: 1337 -> 7"},
           {"data.val_fraction=0.3", "data.val_fraction: 0.1 -> 0.3"},
           {"data.tokenizer=byte", "data.tokenizer: \"char\" -> \"byte\""}}) {
    const std::string text = refusal_of_change({change});
    EXPECT_TRUE(has(text, said));
    EXPECT_TRUE(has(text, "runs/a/checkpoints/step_00000010"));
    const std::string key = change.substr(0, change.find('='));
    EXPECT_TRUE(has(text, "checkpoint.allow_changes='[\"" + key + "\"]'"));
    EXPECT_EQ(refusal_of_change({change, "checkpoint.allow_changes=" + key}), "");
    EXPECT_EQ(refusal_of_change({change, "checkpoint.allow_changes=true"}), "");
    EXPECT_NE(refusal_of_change({change, "checkpoint.allow_changes=model.norm"}), "");
  }
  EXPECT_TRUE(has(refusal_of_change({"run.seed=7", "model.n_layer=3"}),
                  "'[\"run.seed\",\"model.n_layer\"]'"));
}

TEST(Resume, WhatChangesNoRunMayChange) {
  EXPECT_EQ(refusal_of_change({"log.interval=3", "eval.interval=7", "run.walltime=600",
                               "data.reader=node", "data.prefetch=4", "model.attention=own",
                               "model.tile=2", "train.max_steps=99", "train.precision=fp64",
                               "optimizer.learning_rate=0.5", "parallel.zero=1"}),
            "");
}

// Checkpoints from before families had their own keys contain derived values of keys of other
// families.
TEST(Resume, KeysOfOtherFamiliesArePassedOver) {
  const std::string derived = "\"derived\": {";
  const auto left_with = [&](const std::string& value) {
    ResumePoint from = left_by(small_deck());
    const std::size_t at = from.meta.deck.find(derived);
    EXPECT_NE(at, std::string::npos);
    from.meta.deck.insert(at + derived.size(), value);
    return refusal([&] { require_allowed(from, small_deck()); });
  };
  EXPECT_EQ(left_with("\"model.subsampling\": 4,"), "");
  EXPECT_TRUE(has(left_with("\"model.n_layer\": 1,"), "model.n_layer: 1 -> "));
}

TEST(Resume, DataMayMoveButNotChange) {
  const Deck deck = small_deck(), moved = small_deck({"data.train=/scratch/copy.txt"});
  const ResumePoint from = left_by(deck);
  const auto said = [&](const Deck& now, const std::string& contents) {
    return refusal([&] { require_same_data(from, now, contents, 0); });
  };
  EXPECT_EQ(said(deck, kContents), "");
  EXPECT_EQ(said(moved, kContents), "");
  EXPECT_TRUE(has(said(moved, "train 901 tokens"), "data.train: "));
  // The names are the same, but the contents differ.
  const std::string other = said(deck, "train 901 tokens");
  EXPECT_TRUE(has(other, kContents));
  EXPECT_TRUE(has(other, "train 901 tokens"));
  EXPECT_TRUE(has(other, "[\"data.train\"]"));
  EXPECT_EQ(said(small_deck({"checkpoint.allow_changes=data.train"}), "train 901 tokens"), "");
  // A checkpoint without a record of its training data.
  const ResumePoint old = left_by(deck, "");
  EXPECT_EQ(refusal([&] { require_same_data(old, deck, kContents, 0); }), "");
  EXPECT_TRUE(has(refusal([&] { require_same_data(old, moved, kContents, 0); }), "data.train: "));
  // A checkpoint that has a shorter record of the same data.
  const std::string more = fmt::format("{}, blend 0.5 of 450 tokens", kContents);
  EXPECT_EQ(said(deck, more), "");
  EXPECT_TRUE(has(said(moved, more), "data.train: "));
  ResumePoint imported = left_by(deck, "");
  imported.checkpoint.manifest.step = 0;
  EXPECT_EQ(refusal([&] { require_same_data(imported, moved, kContents, 0); }), "")
      << "it has seen no data";
}

TEST(Resume, EveryChangeIsToldAndTheLearningRateItLeadsTo) {
  const Deck before = small_deck({"train.max_steps=100", "optimizer.learning_rate=0.5"});
  const auto report = [&](const std::vector<std::string>& overrides) {
    std::vector<std::string> all{"train.max_steps=100", "optimizer.learning_rate=0.5"};
    for (const std::string& word : overrides)
      if (word.starts_with("train.max_steps"))
        all[0] = word;
      else
        all.push_back(word);
    const Deck now = small_deck(all);
    return changes_report(left_by(before), now, schedule_of(now, 1), 100, 1);
  };
  EXPECT_EQ(report({}), "");
  EXPECT_EQ(report({"log.interval=3"}), "\n  log.interval: 10 -> 3");
  const std::string longer = report({"train.max_steps=200"});
  EXPECT_TRUE(has(longer, "\n  train.max_steps: 100 -> 200"));
  EXPECT_TRUE(has(longer, "\n  optimizer.decay_steps: 100 -> 200"));
  EXPECT_TRUE(has(longer,
                  "\n  learning rate: cosine, peak 0.5 after 0 warm-up steps, 0 at step 200; "
                  "step 101 of 200 takes 0.25, 0 without the change"));
}

TEST(Resume, ADecayThatBeganBeforeTheCheckpointIsReported) {
  const std::vector<std::string> plateau{"train.max_steps=100", "optimizer.schedule=wsd"};
  const auto report = [&](const char* tail) {
    const Deck now = small_deck({"train.max_steps=200", "optimizer.schedule=wsd",
                                 std::string("optimizer.wsd_decay_steps=") + tail});
    return changes_report(left_by(small_deck(plateau)), now, schedule_of(now, 1), 100, 1);
  };
  EXPECT_TRUE(has(report("100"), "\n  optimizer.wsd_decay_steps: 0 -> 100"));
  EXPECT_TRUE(has(report("100"), "\n  learning rate: wsd, peak "));
  EXPECT_FALSE(has(report("100"), "the decay begins"));
  EXPECT_TRUE(has(report("120"),
                  "\n  the decay begins at step 80, 20 steps before this checkpoint: to continue "
                  "from the plateau, resume from a checkpoint of step 80 or earlier, or set "
                  "optimizer.wsd_decay_steps to at most 100"));
}

TEST(Resume, KeysAFormerProgramDidNotHaveCountAsDefaults) {
  ResumePoint from = left_by(small_deck());
  const std::string key = "\"verbose\": false,";
  const auto at = from.meta.deck.find(key);
  ASSERT_NE(at, std::string::npos);
  from.meta.deck.erase(at, key.size());
  const auto report = [&](const Deck& now) {
    return changes_report(from, now, schedule_of(now, 1), 1, 1);
  };
  EXPECT_EQ(report(small_deck()), "");
  EXPECT_EQ(report(small_deck({"log.verbose=true"})), "\n  log.verbose: false -> true");
}

}  // namespace
}  // namespace choir
