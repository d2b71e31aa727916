#include "src/lab/plan/model_sizes.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "src/lab/plan/layout_search.hpp"
#include "src/lab/plan/plan_report.hpp"
#include "src/models/gpt/family.hpp"
#include "test/support/families.hpp"

namespace choir {
namespace {

/// Few tokens and positions: the search mainly fits the blocks.
SizeRequest request(const std::string& like, double memory, std::vector<std::string> more = {}) {
  more.insert(more.end(), {"model.vocab_size=64", "model.block_size=16", "train.grad_accum=1"});
  return {.families = test::families(),
          .like = like,
          .fill = {.low = 0.85, .high = 0.9},
          .overrides = std::move(more),
          .place = {.ranks = 2,
                    .ranks_per_node = 2,
                    .target = {.name = "a test", .kind = DeviceKind::cpu, .memory = memory}}};
}

TEST(SizeSearch, SizesAreWhatKernelsAndLayoutsLike) {
  for (const std::string& like : model_likes()) {
    const std::vector<ModelSize> sizes = model_sizes(like);
    ASSERT_TRUE(std::ranges::is_sorted(sizes, {}, &ModelSize::weights));
    for (const ModelSize& size : sizes) {
      EXPECT_EQ(size.width % 64, 0);
      EXPECT_EQ(size.ffn_width % 256, 0);
      EXPECT_TRUE(size.width / size.heads == 64 || size.width / size.heads == 128);
      EXPECT_EQ(size.heads % size.kv_heads, 0);
      EXPECT_EQ(size.layers % 2, 0);
      if (size.width >= 512) {
        EXPECT_EQ(size.kv_heads % 8, 0) << size.width;
      }
    }
    // From some millions on the steps are smaller than the usual range of a fill: 0.85 to 0.90 is
    // wide, 0.9 / 0.85 = 1.059.
    for (std::size_t i = 1; i < sizes.size(); ++i)
      if (sizes[i - 1].weights > 3e9 && sizes[i].weights < 4e11) {
        EXPECT_LT(sizes[i].weights / sizes[i - 1].weights, 1.059) << like << " " << i;
      }
  }
}

TEST(SizeSearch, WeightsAreThoseOfTheModel) {
  for (const std::string& like : model_likes()) {
    const ModelSize size = model_sizes(like)[3];
    const Deck deck =
        parse_deck(test::families(), sized_deck(like, size), "sized", {"model.vocab_size=64"});
    const GptConfig& gpt = gpt_of(deck);
    const double others = static_cast<double>(parameters_of(deck)) - size.weights;
    // Embeddings, norms and biases: a few rows of the width.
    EXPECT_GT(others, 0);
    EXPECT_LE(others, static_cast<double>(gpt.n_embd * (2 * 64 + gpt.block_size + 2) +
                                          gpt.n_layer * (13 * gpt.n_embd)));
  }
}

/// The size that a search finds leaves no room for any larger one: each larger size is planned.
TEST(SizeSearch, FindsTheLargest) {
  for (const auto& [like, more] :
       {std::pair<std::string, std::vector<std::string>>{"llama", {}},
        {"gpt", {"parallel.data=1", "parallel.tensor=2", "train.recompute=full"}}}) {
    const SizeRequest wanted = request(like, 16e6, more);
    const SizedModel found = search_size(wanted);
    EXPECT_LE(found.share, wanted.fill.high);
    EXPECT_EQ(found.share, found.plan.needs() / 16e6);
    const DeckVariants deck(test::families(), found.deck, "found", {});
    PlanCase place = wanted.place;
    place.deck = deck.with({});
    EXPECT_EQ(plan_layout(place).needs(), found.plan.needs());  // the deck has every setting
    place.target.memory *= wanted.fill.high;
    int larger = 0;
    for (const ModelSize& size : legal_sizes(test::families(), like, wanted.overrides)) {
      if (size.weights <= found.size.weights || ++larger > 3) continue;
      const DeckVariants variants(test::families(), sized_deck(like, size), "larger",
                                  wanted.overrides);
      place.deck = variants.with({});
      if (more.empty())
        EXPECT_TRUE(search_layouts(place, variants, 1).fitting.empty()) << size.width;
      else
        EXPECT_FALSE(plan_layout(place).fits()) << size.width;
    }
    EXPECT_EQ(larger > 0, found.next.has_value());
  }
}

TEST(SizeSearch, WidthsThatTheLayoutDoesNotDivideAreLeftOut) {
  const auto narrowest = [](const char* tensor) {
    return legal_sizes(test::families(), "gpt", {tensor}).front().width;
  };
  EXPECT_EQ(narrowest("parallel.tensor=2"), 128);
  EXPECT_EQ(narrowest("parallel.tensor=8"), 512);
  for (const ModelSize& size : legal_sizes(test::families(), "gpt", {"parallel.tensor=3"}))
    ASSERT_EQ(size.heads % 3, 0);
  EXPECT_EQ(legal_sizes(test::families(), "llama", {"parallel.pipeline=4"}).front().layers, 4);
  EXPECT_THROW(legal_sizes(test::families(), "llama", {"parallel.tensor=37"}), DeckError);
}

TEST(SizeSearch, RefusesByName) {
  EXPECT_THROW(search_size(request("llama", 1e5)), DeckError);
  EXPECT_THROW(search_size(request("lama", 1e8)), DeckError);
  EXPECT_THROW(search_size(request("gpt", 1e8, {"model.n_embd=64"})), DeckError);
  for (const char* range :
       {"0.9", "0.9:0.8", "85:90", "0:0.5", "0.8:", ":0.9", "0.8:0.9x", "nan:1"})
    EXPECT_THROW(fill_range(range), DeckError) << range;
  EXPECT_EQ(fill_range("0.5:1").high, 1);
}

}  // namespace
}  // namespace choir
