// Tests of the positions and heads of each rank: pure functions, for any rank of any number of
// ranks.
#include "src/nn/axes/context_axis.hpp"

#include <gtest/gtest.h>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/error.hpp"
#include "choir/nn/layers/dropout.hpp"
#include "src/device/cpu_device.hpp"

namespace choir {
namespace {

TEST(PositionShare, CoversEveryPositionOnce) {
  for (const std::int64_t whole : {1, 2, 5, 7, 8, 100})
    for (const int ranks : {1, 2, 3, 4, 7, 9}) {
      std::int64_t next = 0;
      const std::int64_t n = position_share(whole, 0, ranks).tokens;
      EXPECT_LT(n * ranks - whole, ranks) << "at most ranks - 1 positions of padding";
      for (int r = 0; r < ranks; ++r) {
        const PositionShare share = position_share(whole, r, ranks);
        EXPECT_EQ(share.tokens, n);
        EXPECT_EQ(share.first, r * n);
        if (share.real > 0) {
          EXPECT_EQ(share.first, next);
        }
        next += share.real;
      }
      EXPECT_EQ(next, whole);
    }
  EXPECT_THROW(position_share(8, 2, 2), Error);
  EXPECT_THROW(position_share(0, 0, 1), Error);
}

TEST(PositionShare, CutsEverySequence) {
  const std::vector<std::int32_t> whole{10, 11, 12, 13, 14, 20, 21, 22, 23, 24};
  const auto cut = [&](int rank, int ranks) {
    const PositionShare share = position_share(5, rank, ranks);
    std::vector<std::int32_t> part(static_cast<std::size_t>(2 * share.tokens), 99);
    cut_positions(whole, 5, share, -1, part);
    return part;
  };
  using Ids = std::vector<std::int32_t>;
  EXPECT_EQ(cut(0, 1), whole);
  EXPECT_EQ(cut(0, 2), (Ids{10, 11, 12, 20, 21, 22}));
  EXPECT_EQ(cut(1, 2), (Ids{13, 14, -1, 23, 24, -1}));
  EXPECT_EQ(cut(2, 4), (Ids{14, -1, 24, -1}));
  EXPECT_EQ(cut(3, 4), (Ids{-1, -1, -1, -1})) << "nothing but padding";
  std::vector<std::int32_t> wrong(5);
  EXPECT_THROW(cut_positions(whole, 5, position_share(5, 0, 2), -1, wrong), Error);
  EXPECT_THROW(cut_positions(whole, 4, position_share(4, 0, 2), -1, wrong), Error);
}

// Rank c has shares c and 2 C - 1 - c of 2 C: under the causal mask every rank has the same number
// of pairs of queries and keys.
TEST(PositionShare, ZigZagLevelsCausalWork) {
  const auto mesh = Mesh::planned(Layout(1, 3, 1, 1), 1, 1);
  Communicator* const ranks = &mesh->along(Axis::context);
  const ContextAxis zigzag{ranks, {ContextMode::gather}}, straight{ranks};
  ASSERT_EQ(zigzag.runs(), 2);
  EXPECT_EQ(straight.runs(), 1);
  const Sequence part = share_of_sequences(4, 30, zigzag);
  EXPECT_EQ(part.tokens, 10);
  EXPECT_EQ(part.rows(), 40);
  EXPECT_EQ(part.runs(), 2);
  EXPECT_EQ(part.run(0).first_position, 5);
  EXPECT_EQ(part.run(1).first_position, 20);
  EXPECT_EQ(part.run(1).first_row, 20);
  std::vector<int> owners(30, 0);
  for (int rank = 0; rank < 3; ++rank) {
    std::int64_t seen = 0;
    for (const int run : {0, 1}) {
      const PositionShare share = zigzag.share(30, rank, run);
      for (std::int64_t t = share.first; t < share.first + share.real; ++t)
        ++owners[static_cast<std::size_t>(t)], seen += t;
    }
    EXPECT_EQ(seen, 145) << "the sum of positions";
  }
  EXPECT_EQ(owners, std::vector<int>(30, 1));
}

// Groups of two of six ranks: group g has runs g and 2 * 3 - 1 - g of the six runs of the sequence,
// and its rank c has half c % 2 of both.
TEST(PositionShare, GroupsZigZagAndTheirRanksFollowOnOneAnother) {
  const auto mesh = Mesh::planned(Layout(1, 6, 1, 1), 1, 1);
  const ContextAxis axis{&mesh->along(Axis::context), {ContextMode::ring, 2}};
  ASSERT_EQ(axis.exchanging(), 2);
  ASSERT_EQ(axis.runs(), 2);
  const std::vector<std::pair<int, int>> first{{0, 50},  {5, 55},  {10, 40},
                                               {15, 45}, {20, 30}, {25, 35}};
  for (int rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(axis.share(60, rank, 0).first, first[static_cast<std::size_t>(rank)].first);
    EXPECT_EQ(axis.share(60, rank, 1).first, first[static_cast<std::size_t>(rank)].second);
  }
}

TEST(ContextWay, IsUlyssesWhereTheRanksDivideTheHeads) {
  const ContextWay ulysses{}, gather{ContextMode::gather}, ring{ContextMode::ring};
  EXPECT_EQ(context_way_of(RequestedContextMode::automatic, 12, 4), ulysses);
  EXPECT_EQ(context_way_of(RequestedContextMode::automatic, 12, 5), gather);
  EXPECT_EQ(context_way_of(RequestedContextMode::automatic, 2, 4), gather);
  EXPECT_EQ(context_way_of(RequestedContextMode::gather, 12, 4), gather);
  EXPECT_EQ(context_way_of(RequestedContextMode::gather, 0, 4), ulysses) << "nobody attends";
  EXPECT_EQ(context_way_of(RequestedContextMode::ring, 12, 4), ring);
  EXPECT_EQ(context_way_of(RequestedContextMode::ring_ulysses, 12, 8),
            (ContextWay{ContextMode::ring, 4}));
  EXPECT_EQ(context_way_of(RequestedContextMode::ring_ulysses, 12, 5), ring);
  EXPECT_EQ(context_way_of(RequestedContextMode::ring_ulysses, 12, 6), ulysses);
}

// Requirement of attention: query head j of a rank reads the K/V head j / (heads / kv_heads) of the
// rank, which must be the one that this query head reads among all heads.
TEST(ContextHeads, EveryQueryFindsItsKeys) {
  for (const std::int64_t heads : {1, 4, 6, 12, 24})
    for (std::int64_t kv_heads = 1; kv_heads <= heads; ++kv_heads)
      for (const std::int64_t ranks : legal_context_sizes(heads)) {
        if (heads % kv_heads != 0) continue;
        const ContextHeads here = context_heads(heads, kv_heads, static_cast<int>(ranks));
        ASSERT_EQ(here.heads, heads / ranks);
        ASSERT_EQ(here.heads % here.kv_heads, 0);
        ASSERT_EQ(here.kv_heads * ranks, kv_heads * here.copies);
        if (kv_heads % ranks == 0) {
          EXPECT_EQ(here.copies, 1) << "nothing is sent twice";
        }
        for (std::int64_t h = 0; h < heads; ++h) {
          const std::int64_t rank = h / here.heads, j = h % here.heads;
          const std::int64_t sent =
              rank * here.kv_heads + j / (here.heads / here.kv_heads);  // among all copies
          ASSERT_EQ(sent / here.copies, h / (heads / kv_heads))
              << "head " << h << " of " << heads << ", " << kv_heads << " for " << ranks;
        }
      }
  EXPECT_THROW(context_heads(12, 12, 5), Error);
  EXPECT_EQ(legal_context_sizes(12), (std::vector<std::int64_t>{1, 2, 3, 4, 6, 12}));
}

// The mask belongs to the position: a share of a sequence drops the same elements as the whole.
TEST(ContextDropout, IsThatOfTheWholeSequence) {
  constexpr std::int64_t kTokens = 7, kWidth = 24, kBatch = 3;
  CpuDevice device;
  Arena arena(device, 1 << 20);
  Pass pass(Stream(device), arena, precision_of("fp64"), 1);
  const Dropout layer("a", 0.3);
  const auto mask = [&](const Sequence& sequence) {
    pass.begin(Mode::train, sequence, 10);
    Tensor x = pass.allocate({sequence.rows(), kWidth}, "x");
    std::fill_n(x.as<double>(), x.count(), 1.0);
    layer.forward(pass, x);
    return std::vector<double>(x.as<double>(), x.as<double>() + x.count());
  };
  const auto whole = mask({.batch = kBatch, .tokens = kTokens});
  for (int rank = 0; rank < 3; ++rank) {
    const PositionShare share = position_share(kTokens, rank, 3);
    const auto part = mask({.batch = kBatch,
                            .tokens = share.tokens,
                            .first_position = share.first,
                            .whole_tokens = kTokens});
    for (std::int64_t b = 0; b < kBatch; ++b)
      EXPECT_TRUE(std::equal(whole.begin() + (b * kTokens + share.first) * kWidth,
                             whole.begin() + (b * kTokens + share.first + share.real) * kWidth,
                             part.begin() + b * share.tokens * kWidth))
          << rank;
  }
}

}  // namespace
}  // namespace choir
