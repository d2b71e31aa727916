#include "choir/comm/layout.hpp"

#include <gtest/gtest.h>

#include "choir/core/error.hpp"

namespace choir {
namespace {

using Groups = std::vector<std::vector<int>>;

// Golden groups: 8 ranks, t=2 c=1 d=2 p=2, as Megatron-LM numbers them.
TEST(Layout, GoldenGroups) {
  const Layout layout(2, 1, 2, 2);
  EXPECT_EQ(layout.groups({Axis::tensor}), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(layout.groups({Axis::data}), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(layout.groups({Axis::pipeline}), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(layout.groups({Axis::context}), (Groups{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}));
  EXPECT_EQ(layout.groups({Axis::tensor, Axis::pipeline}), (Groups{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(layout.group(6, {Axis::tensor, Axis::data}), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(layout.to_string(), "dp=2 tp=2 pp=2 cp=1");
}

TEST(Layout, RankIsTheFormula) {
  const Layout layout(2, 3, 5, 4);
  ASSERT_EQ(layout.ranks(), 120);
  for (int p = 0; p < 4; ++p)
    for (int d = 0; d < 5; ++d)
      for (int c = 0; c < 3; ++c)
        for (int t = 0; t < 2; ++t) {
          const Coordinates at{{t, c, d, p}};
          const int rank = t + 2 * (c + 3 * (d + 5 * p));
          EXPECT_EQ(layout.rank(at), rank);
          EXPECT_EQ(layout.coordinates(rank), at);
        }
}

// The data axis is slower and the context axis faster in any order of the layout.
TEST(Layout, ReplicasHaveTheSameParameters) {
  EXPECT_EQ(Layout(2, 2, 2, 1).replicas(5), (std::vector<int>{1, 3, 5, 7}));
  EXPECT_EQ(Layout(2, 2, 2, 1, "dp-cp-tp-pp").replicas(5), (std::vector<int>{4, 6, 5, 7}));
  EXPECT_EQ(Layout(2, 1, 2, 2).replicas(6), Layout(2, 1, 2, 2).group(6, {Axis::data}));
  EXPECT_EQ(Layout(2, 1, 1, 2).replicas(3), (std::vector<int>{3}));
}

TEST(Layout, PipelineInsideData) {  // picotron's grid (dp, pp, cp, tp)
  const Layout layout(2, 1, 2, 2, "tp-cp-pp-dp");
  EXPECT_EQ(layout.groups({Axis::pipeline}), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(layout.groups({Axis::data}), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
}

TEST(Layout, OneRankIsOneRank) {
  const Layout layout;
  EXPECT_EQ(layout.ranks(), 1);
  EXPECT_EQ(layout.rank(layout.coordinates(0)), 0);
}

TEST(Layout, RefusesWhatItCannotBe) {
  for (const char* order : {"", "tp", "tp-cp-dp", "tp-cp-dp-dp", "tp-cp-dp-pp-ep", "tp-cp-dp-ep",
                            "tp-cp-dp-pp-tp", "tp--dp-pp", "TP-cp-dp-pp", "tp-cp-dp-pp-"})
    EXPECT_THROW(Layout(1, 1, 1, 1, order), DeckError) << order;
  EXPECT_THROW(Layout(0, 1, 1, 1), DeckError);
  EXPECT_THROW(Layout(1, 1, -2, 1), DeckError);
  EXPECT_THROW(Layout(1 << 16, 1, 1 << 16, 1), DeckError);
  try {
    const Layout bad(1, 1, 0, 1);
    FAIL();
  } catch (const DeckError& error) {
    EXPECT_NE(std::string(error.what()).find("parallel.data: 0"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace choir
