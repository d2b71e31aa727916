#include <gtest/gtest.h>

#include "choir/deck/deck.hpp"
#include "src/models/fastconformer/speech_settings.hpp"
#include "src/run/run_setup.hpp"

namespace choir {
namespace {

Deck speech_deck(const std::vector<std::string>& overrides = {}, int vocabulary = 29) {
  return parse_deck(test::families(),
                    R"({"model": {"type": "fastconformer", "vocab_size": )" +
                        std::to_string(vocabulary) + R"(}, "train": {"micro_batches": 6}})",
                    "speech.json", overrides);
}

std::string complaint_of_deck(const std::vector<std::string>& overrides) {
  try {
    speech_deck(overrides);
  } catch (const DeckError& error) {
    return error.what();
  }
  return {};
}

bool deck_says(const std::vector<std::string>& overrides, const std::string& words) {
  const std::string text = complaint_of_deck(overrides);
  EXPECT_NE(text.find(words), std::string::npos) << text;
  return text.find(words) != std::string::npos;
}

TEST(DeckSpeech, SharedKeysCountWhereGiven) {
  const ModelConfig plain = model_of(speech_deck());
  ASSERT_TRUE(!plain.family().fixed_shape());
  const FastConformerConfig defaults;
  EXPECT_EQ(plain.n_layer(), defaults.n_layer);
  EXPECT_EQ(plain.n_embd(), defaults.n_embd);
  EXPECT_EQ(plain.as<FastConformerConfig>().dropout, defaults.dropout);
  EXPECT_EQ(plain.vocab_size(), 29);
  const FastConformerConfig given =
      model_of(
          speech_deck({"model.n_layer=3", "model.n_embd=64", "model.n_head=2", "model.dropout=0",
                       "model.ffn_width=96", "model.conv_norm=batchnorm", "model.subsampling=4",
                       "model.context_style=chunked", "model.right_context=1", "model.mels=40",
                       "model.left_context=4", "model.freq_masks=1", "train.recompute=full"}))
          .as<FastConformerConfig>();
  EXPECT_EQ(given.n_layer, 3);
  EXPECT_EQ(given.n_embd, 64);
  EXPECT_EQ(given.n_head, 2);
  EXPECT_EQ(given.dropout, 0);
  EXPECT_EQ(given.hidden(), 96);
  EXPECT_EQ(given.conv_norm, ConvNorm::batchnorm);
  EXPECT_EQ(given.context_style, ContextStyle::chunked);
  EXPECT_EQ(given.subsampling, 4);
  EXPECT_EQ(given.mel.mels, 40);
  EXPECT_EQ(given.augment.frequency_masks, 1);
  EXPECT_EQ(given.recompute, Recompute::full);
}

// The deck that a run writes beside its results is read back as the same model.
TEST(DeckSpeech, ResolvedDeckIsTheSameModel) {
  const Deck deck = speech_deck({"model.n_layer=3", "model.hop=80"});
  const Deck again = parse_deck(test::families(), resolved_json(deck), "again.json", {});
  EXPECT_EQ(deck_digest(again), deck_digest(deck));
  EXPECT_EQ(model_of(again).n_layer(), 3);
  EXPECT_EQ(model_of(again).n_embd(), FastConformerConfig().n_embd);
  EXPECT_EQ(model_of(again).as<FastConformerConfig>().mel.hop, 80);
}

TEST(DeckSpeech, KeysOfTheOtherKindAreRefused) {
  deck_says({"model.block_size=64"}, "model.block_size is for model.type = \"gpt\"");
  deck_says({"train.grad_accum=2"}, "train.grad_accum is for model.type = \"gpt\"");
  deck_says({"model.type=gpt", "model.conv_kernel=9"},
            "model.conv_kernel is for model.type = \"fastconformer\"");
  deck_says({"model.type=gpt"}, "train.micro_batches is for model.type = \"fastconformer\"");
}

TEST(DeckSpeech, ValuesThatDoNotFitAreRefused) {
  EXPECT_EQ(complaint_of_deck({}), "");
  deck_says({"model.n_embd=178"}, "model.n_embd = 178 is not a multiple of model.n_head = 4");
  deck_says({"model.conv_kernel=8"}, "nearest legal: 7 or 9");
  deck_says({"model.subsampling=6"}, "legal: 2, 4 or 8");
  deck_says({"model.fft=256"}, "model.fft = 256 is shorter than model.window = 400");
  deck_says({"model.mel_high=9000"}, "nearest legal: 8000");
  deck_says({"model.fft=600"}, "model.fft = 600; legal: transforms of 256, 512 or 1024 samples");
  deck_says({"model.hop=513"}, "model.hop = 513; legal: 1 ... fft samples");
  deck_says({"model.context_style=chunked"}, "right_context = -1");
  deck_says({"model.context_style=chunked", "model.right_context=2", "model.left_context=4"},
            "whole chunks of 3 frames; nearest legal: 3 or 6");
  deck_says({"train.micro_batches=0"}, "train.micro_batches is not given");
  deck_says({"parallel.context=2"}, "parallel.context = 2 shares tokens");
  deck_says({"parallel.tensor=3"}, "model.n_head = 4 cannot be divided");
  deck_says({"parallel.pipeline=17"}, "more than model.n_layer = 16");
}

// The default width suits 80 bins; if nothing is masked it does not count.
TEST(DeckSpeech, MasksThatDoNotFitAreRefused) {
  deck_says(
      {"model.mels=20"},
      "model.freq_width = 27 (the default) is more than model.mels = 20 has; nearest legal: 20, or "
      "model.freq_masks = 0");
  deck_says({"model.mels=20", "model.freq_width=21"}, "model.freq_width = 21 is more than");
  EXPECT_EQ(complaint_of_deck({"model.mels=20", "model.freq_width=20"}), "");
  EXPECT_EQ(complaint_of_deck({"model.mels=20", "model.freq_masks=0"}), "");
  deck_says({"model.time_masks=255"}, "at most 256 together");
  EXPECT_EQ(complaint_of_deck({"model.time_masks=254"}), "");
}

// Ranks own equally many slots, some of them empty; in reproducible mode the tree of sums has the
// same slots on any number of ranks.
TEST(DeckSpeech, MicroBatchesAreDealtOut) {
  Deck deck = speech_deck();
  for (const auto& [ranks, share] : {std::pair(1, 6), {2, 3}, {4, 2}, {8, 1}}) {
    const BatchSizes batch = resolve_batch(deck, ranks);
    EXPECT_EQ(batch.accum, share) << ranks;
    EXPECT_EQ(batch.global, 6);
  }
  Deck exact = speech_deck({"train.reproducible=true"});
  for (const auto& [ranks, share] : {std::pair(1, 8), {2, 4}, {4, 2}, {8, 1}})
    EXPECT_EQ(resolve_batch(exact, ranks).accum, share) << ranks;
  EXPECT_THROW(resolve_batch(exact, 3), DeckError);
}

}  // namespace
}  // namespace choir
