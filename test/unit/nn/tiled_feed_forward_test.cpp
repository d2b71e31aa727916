// Tests of the feed-forward layer in tiles: the training is the same, and only one tile of the
// hidden layer is alive.
#include <gtest/gtest.h>

#include "test/unit/nn/trained.hpp"

namespace choir {
namespace {

using test::Trained;

constexpr Recompute kChoices[] = {Recompute::none, Recompute::selective, Recompute::full};

std::vector<GptConfig> models_to_tile() {
  GptConfig tanh = test::tiny_gpt(), relu = test::tiny_llama();
  tanh.activation = ops::Activation::gelu_tanh;
  tanh.dropout = 0.2;
  relu.activation = ops::Activation::relu;
  return {test::tiny_gpt(), tanh, test::tiny_llama(), relu};
}

Trained train_in_tiles(EngineOptions options, int tiles, Recompute recompute = Recompute::none) {
  options.model.as<GptConfig>().tile = tiles;
  options.model.as<GptConfig>().recompute = recompute;
  return test::trained(options, 4);
}

TEST(TiledFeedForward, TrainsTheSameInFp64) {
  for (const GptConfig& model : models_to_tile())
    for (const int stage : {0, 2, 3}) {
      EngineOptions options = test::engine_options(model, "fp64", 2);
      options.zero.stage = stage;
      const Trained whole = train_in_tiles(options, 1);
      for (const int tiles : {2, 4, 64}) {
        const Trained tiled = train_in_tiles(options, tiles);
        EXPECT_LE(test::distance(whole.losses, tiled.losses), 1e-12) << tiles;
        EXPECT_LE(test::distance(whole.norms, tiled.norms), 1e-12) << tiles;
        EXPECT_LE(test::distance(whole.state, tiled.state), 1e-12) << tiles;
      }
    }
}

TEST(TiledFeedForward, RecomputationChangesNoBit) {
  for (const GptConfig& model : models_to_tile())
    for (const char* precision : {"fp64", "bf16-mixed"}) {
      const EngineOptions options = test::engine_options(model, precision, 2);
      const Trained kept = train_in_tiles(options, 4);
      for (const Recompute recompute : kChoices) {
        const Trained again = train_in_tiles(options, 4, recompute);
        EXPECT_TRUE(test::same_bits(kept.losses, again.losses)) << precision;
        EXPECT_TRUE(test::same_bits(kept.norms, again.norms)) << precision;
        EXPECT_TRUE(test::same_bits(kept.state, again.state)) << precision;
      }
    }
}

// The sum over the hidden width is rounded once per tile: after N tiles the error against fp64 is
// that of N roundings, whereas the whole layer has one.
TEST(TiledFeedForward, StaysAsCloseToFp64AsTheWholeLayer) {
  for (const GptConfig& model : models_to_tile())
    for (const auto& [precision, roundoff] : {std::pair{"fp32", 0x1p-24}, {"bf16-mixed", 0x1p-9}}) {
      const Trained exact = train_in_tiles(test::engine_options(model, "fp64", 2), 1);
      const EngineOptions options = test::engine_options(model, precision, 2);
      const double of_whole = test::distance(exact.losses, train_in_tiles(options, 1).losses);
      EXPECT_LE(test::distance(exact.losses, train_in_tiles(options, 2).losses),
                2 * of_whole + roundoff);
    }
}

// Operations that are counted beside the same products: for every tile of a tensor except the
// first, the norm has one more chunk and one more sum of such chunks. Tensors and their tiles have
// at most one chunk, without gaps between them, which AdamW would count.
TEST(TiledFeedForward, DoesTheSameWork) {
  constexpr int kTiles = 4;
  for (GptConfig model : models_to_tile())
    for (const Recompute recompute : kChoices) {
      model.recompute = recompute;
      model.ffn_width = 64 * kTiles;
      const auto planned = [&](int tiles) {
        model.tile = tiles;
        return plan_step(test::engine_options(model, "fp32", 2), Layout(), 0, 1, false);
      };
      const StepPlan whole = planned(1), tiled = planned(kTiles);
      const auto chunks = static_cast<double>(model.n_layer * (kTiles - 1) * (model.bias ? 3 : 2));
      EXPECT_EQ(tiled.flops, whole.flops + 2 * chunks);
      EXPECT_EQ(tiled.repeated_flops, whole.repeated_flops);
    }
}

std::size_t peak(GptConfig model, int tiles, Recompute recompute) {
  model.n_layer = 1;
  model.vocab_size = 8;  // small compared with the hidden layer
  model.block_size = 64;
  model.ffn_width = 4096;
  model.tile = tiles;
  model.recompute = recompute;
  return plan_step(test::engine_options(model, "fp64", 1), Layout(), 0, 1, false).arena_bytes;
}

// A layer that is fully recomputed has alive, of its hidden width, its input, its activation and
// their gradients; with tiles 1 / N of these. Otherwise all tiles keep as much as the whole layer.
TEST(TiledFeedForward, ATileOfTheHiddenLayerIsAlive) {
  constexpr double kHidden = 8.0 * 128 * 4096;  // N F in fp64
  for (const GptConfig& model : models_to_tile()) {
    const double inputs = ops::activation_inputs(model.activation);
    const auto whole = static_cast<double>(peak(model, 1, Recompute::full));
    const auto tiled = static_cast<double>(peak(model, 8, Recompute::full));
    EXPECT_GE(whole, (1 + inputs) * kHidden);
    EXPECT_LE(tiled, whole - (1 + inputs) * kHidden * 7 / 8 * 0.9);
    EXPECT_LE(peak(model, 8, Recompute::none), peak(model, 1, Recompute::none));
    EXPECT_LE(peak(model, 8, Recompute::selective), peak(model, 1, Recompute::selective));
  }
}

}  // namespace
}  // namespace choir
