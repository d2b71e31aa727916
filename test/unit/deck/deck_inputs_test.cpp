// Tests that the decks in inputs/ have the intended settings.
#include <gtest/gtest.h>

#include <filesystem>

#include "choir/deck/deck.hpp"
#include "src/models/gpt/family.hpp"
#include "test/support/families.hpp"

namespace choir {
namespace {

TEST(DeckInputs, EveryShippedDeckIsReadAndResolves) {
  int decks = 0;
  for (const auto& entry : std::filesystem::directory_iterator("inputs")) {
    if (entry.path().extension() != ".json") continue;
    SCOPED_TRACE(entry.path());
    Deck deck = read_deck(test::families(), entry.path(), {});
    ++decks;
    EXPECT_EQ(deck.train.grad_accum, 0) << "decks give what a step is made of, never grad_accum";
    EXPECT_GT(deck.family().fixed_shape() ? deck.train.micro_batch_size : deck.train.micro_batches,
              0);
    EXPECT_EQ(deck.run.name, entry.path().stem());
    EXPECT_NO_THROW(resolve_batch(deck, 1));
  }
  EXPECT_GE(decks, 7);
}

TEST(DeckInputs, QuickstartAndDebugShareOutOverSmallNumbersOfRanks) {
  for (const char* path : {"inputs/gpt_quickstart.json", "inputs/debug.json"})
    for (const int ranks : {1, 2, 3, 4}) {
      Deck deck = read_deck(test::families(), path, {});
      EXPECT_NO_THROW(resolve_batch(deck, ranks)) << path << " on " << ranks;
    }
}

// The settings of the talk's run, as published.
TEST(DeckInputs, ShakespeareCharIsTheTalksRun) {
  Deck deck = read_deck(test::families(), "inputs/shakespeare_char.json", {});
  const GptConfig& gpt = gpt_of(deck);
  EXPECT_EQ(gpt.n_layer, 12);
  EXPECT_EQ(gpt.n_head, 12);
  EXPECT_EQ(gpt.n_embd, 768);
  EXPECT_EQ(gpt.block_size, 1024);
  EXPECT_FALSE(gpt.bias);
  EXPECT_TRUE(gpt.tied);
  EXPECT_EQ(gpt.activation, ops::Activation::gelu);
  EXPECT_EQ(deck.optimizer.learning_rate, 6e-4);
  EXPECT_EQ(deck.optimizer.min_lr, 6e-5);
  EXPECT_EQ(deck.optimizer.decay_steps, 600000);
  EXPECT_EQ(deck.optimizer.beta2, 0.95);
  const BatchSizes batch = resolve_batch(deck, 4);
  EXPECT_EQ(batch.accum, 1);
  EXPECT_EQ(batch.global * gpt.block_size, 262144);
  // 12 C^2 + 2 C per layer, the head and the last norm; C^2 comes from 4 squares of attention and 8
  // of the feed-forward layer.
  const std::int64_t c = gpt.n_embd, v = 65;
  EXPECT_EQ(gpt.n_layer * (4 * c * c + 2 * c * gpt.ffn_width + 2 * c) + v * c + c, 85003776);
}

TEST(DeckInputs, BenchShapes) {
  struct Shape {
    const char* name;
    std::int64_t layers, heads, width, block;
    int batch;
    bool bias;
  };
  for (const Shape& s :
       {Shape{"a", 4, 4, 128, 64, 12, false}, Shape{"b", 6, 6, 384, 256, 8, false},
        Shape{"c", 12, 12, 768, 64, 4, true}, Shape{"d", 12, 12, 768, 256, 2, true}}) {
    SCOPED_TRACE(s.name);
    const Deck deck =
        read_deck(test::families(), std::string("inputs/bench_") + s.name + ".json", {});
    const GptConfig& gpt = gpt_of(deck);
    EXPECT_EQ(gpt.n_layer, s.layers);
    EXPECT_EQ(gpt.n_head, s.heads);
    EXPECT_EQ(gpt.n_embd, s.width);
    EXPECT_EQ(gpt.block_size, s.block);
    EXPECT_EQ(gpt.bias, s.bias);
    EXPECT_EQ(gpt.dropout, 0);
    EXPECT_EQ(deck.train.micro_batch_size, s.batch);
    EXPECT_EQ(deck.train.global_batch_size, s.batch);
    EXPECT_EQ(deck.optimizer.decay_steps, deck.train.max_steps);
  }
  EXPECT_EQ(read_deck(test::families(), "inputs/bench_a.json", {}).train.max_steps, 2000);
  EXPECT_EQ(read_deck(test::families(), "inputs/bench_b.json", {}).train.max_steps, 500);
  EXPECT_EQ(gpt_of(read_deck(test::families(), "inputs/bench_c.json", {})).vocab_size, 50257);
}

}  // namespace
}  // namespace choir
