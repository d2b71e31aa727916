// The kinds of the blocks of a GPT, and the numbers that follow from them.
#include <gtest/gtest.h>

#include "src/models/gpt/gpt.hpp"

namespace choir {
namespace {

/// Four layers: windows of 3 but in layer 0 and 3, rotation but in layers 1 and 3.
GptConfig mixed() {
  GptConfig c{.vocab_size = 19,
              .block_size = 8,
              .n_layer = 4,
              .n_head = 2,
              .n_kv_head = 1,
              .n_embd = 8,
              .ffn_width = 16};
  c.position = Position::rope;
  c.rope_skip_interval = 2;
  c.window = 3, c.window_first_layer = 1, c.window_skip_interval = 4;
  return c;
}

TEST(LayerKind, IsDecidedByTheLayer) {
  const GptConfig c = mixed();
  const LayerKind all{.window = 0, .rotates = true, .ffn_width = 16};
  EXPECT_EQ(c.kind_of(0), all);
  EXPECT_EQ(c.kind_of(1), (LayerKind{.window = 3, .rotates = false, .ffn_width = 16}));
  EXPECT_EQ(c.kind_of(2), (LayerKind{.window = 3, .rotates = true, .ffn_width = 16}));
  EXPECT_EQ(c.kind_of(3), (LayerKind{.window = 0, .rotates = false, .ffn_width = 16}));
  GptConfig learned = c;
  learned.position = Position::learned;
  EXPECT_FALSE(learned.kind_of(0).rotates);
}

TEST(LayerKind, WindowsMayHaveAnglesOfTheirOwn) {
  GptConfig c = mixed();
  c.rope_local_theta = c.rope_theta;
  EXPECT_FALSE(c.kind_of(2).local) << "the same base";
  c.rope_local_theta = 50;
  for (const std::int64_t layer : {0, 1, 2, 3})  // a window, and rotation
    EXPECT_EQ(c.kind_of(layer).local, layer == 2) << layer;
  c.rope_local_theta = 0;
  c.rope_scaling_layers = ScaledLayers::full;
  EXPECT_FALSE(c.kind_of(2).local) << "nothing is scaled";
  c.rope_scaling = {.kind = ops::RopeScaling::Kind::linear, .factor = 8};
  EXPECT_TRUE(c.kind_of(2).local);
  c.window = 0;
  EXPECT_FALSE(c.kind_of(2).local);
}

TEST(LayerKind, DecidesPairsAndFlops) {
  const GptConfig c = mixed();
  EXPECT_EQ(c.visible_pairs(c.kind_of(0)), 8 * 9 / 2);
  EXPECT_EQ(c.visible_pairs(c.kind_of(1)), 1 + 2 + 6 * 3);
  EXPECT_EQ(c.over_layers([&](const LayerKind& kind) { return c.visible_pairs(kind); }),
            2 * 36 + 2 * 21);
  // q and output 8 x 8, k and v 8 x 4, two matrices 8 x 16.
  EXPECT_EQ(c.matrix_weights(c.kind_of(0)), 2 * 64 + 2 * 32 + 2 * 128);
  const UnitCosts costs = Gpt::unit_costs(c, 8);
  ASSERT_EQ(costs.size(), 6u);
  EXPECT_EQ(costs[1], 8 * 2 * 448 + 8 * 2 * 8 * 8.0);
  // T is replaced by W (2 T - W) / T.
  EXPECT_EQ(costs[2], 8 * 2 * 448 + 8 * 2 * 8 * (3 * 13 / 8.0));
  EXPECT_EQ(costs[3], costs[2]);
  EXPECT_EQ(costs[4], costs[1]);
  LayerKind wide = c.kind_of(0);
  wide.ffn_width = 32;
  EXPECT_EQ(c.matrix_weights(wide) - c.matrix_weights(c.kind_of(0)), 2 * 128);
}

}  // namespace
}  // namespace choir
