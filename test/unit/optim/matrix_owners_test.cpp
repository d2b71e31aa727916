// The parts of matrices on all ranks cover each matrix once, and the work of the owners is
// balanced.
#include "src/optim/matrix_owners.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "src/optim/newton_schulz.hpp"

namespace choir {
namespace {

/// Two layers: 8 heads of q, 2 of k and v that more ranks share, a row layer in two tiles with
/// buckets of their own, a convolution that every rank has whole, and an embedding.
void add_layers(ParameterSet& parameters, int layers) {
  parameters.begin_bucket("embedding");
  parameters.add({.name = "embedding", .shape = {61, 16}, .shard = {.alignment = 64}});
  for (int l = 0; l < layers; ++l) {
    const std::string name = std::to_string(l);
    parameters.begin_bucket(name);
    parameters.add({.name = name + ".qkv",
                    .shape = {16 + 4 + 4, 16},
                    .use = Use::hidden,
                    .shard = {.split_dim = 0, .sections = {{16, 8}, {4, 2}, {4, 2}}}});
    parameters.add({.name = name + ".norm", .shape = {16}});
    parameters.add({.name = name + ".conv", .shape = {16, 3}, .use = Use::hidden});
    for (int tile = 0; tile < 2; ++tile) {
      parameters.begin_tile();
      parameters.add({.name = name + ".output",
                      .shape = {16, 40},
                      .use = Use::hidden,
                      .shard = {.split_dim = 1, .tile = tile, .tiles = 2}});
    }
    parameters.end_tiles();
  }
}

std::vector<MatrixRound> rounds_of(ParameterSet& parameters, int data_ranks,
                                   std::int64_t elements) {
  add_layers(parameters, 3);
  parameters.place(data_ranks);
  return matrix_rounds(parameters,
                       {.data_ranks = data_ranks,
                        .tensor = parameters.tensor(),
                        .elements = elements,
                        .chosen = [](const Parameter& p) { return p.use == Use::hidden; },
                        .work = newton_schulz_flops});
}

void expect_cover(const MatrixRound& round, int tensor_ranks) {
  for (std::size_t i = 0; i < round.matrices.size(); ++i) {
    const Matrix& m = round.matrices[i];
    std::vector<int> owned(static_cast<std::size_t>(m.rows * m.columns)), held = owned;
    std::set<int> ranks;
    for (const MatrixBlock& b : round.blocks) {
      if (b.matrix != i) continue;
      ranks.insert(b.tensor);
      ASSERT_EQ(b.in_bucket.count, b.rows * b.columns);
      for (std::int64_t r = b.row; r < b.row + b.rows; ++r)
        for (std::int64_t c = b.column; c < b.column + b.columns; ++c) {
          owned.at(static_cast<std::size_t>(r * m.columns + c)) += b.owned ? 1 : 0;
          held.at(static_cast<std::size_t>(r * m.columns + c)) += 1;
        }
    }
    EXPECT_EQ(std::ranges::count(owned, 1), std::ssize(owned)) << m.parameter->name << m.section;
    EXPECT_GE(*std::ranges::min_element(held), 1);
    EXPECT_EQ(static_cast<int>(ranks.size()), tensor_ranks);
  }
}

TEST(MatrixOwners, PartsCoverEveryMatrixOnce) {
  for (const int tensor_ranks : {1, 2, 4})
    for (const int data_ranks : {1, 3}) {
      std::vector<MatrixRound> first;
      for (int rank = 0; rank < tensor_ranks; ++rank) {
        ParameterSet parameters({.rank = rank, .ranks = tensor_ranks});
        const std::vector<MatrixRound> rounds = rounds_of(parameters, data_ranks, 1 << 24);
        ASSERT_EQ(rounds.size(), 2u);  // the embedding, and all layers
        EXPECT_TRUE(rounds[0].matrices.empty());
        ASSERT_EQ(rounds[1].matrices.size(), 3u * (3 + 1 + 1));
        EXPECT_EQ(rounds[1].matrices[0].rows, 16);
        EXPECT_EQ(rounds[1].matrices[1].rows, 4);
        expect_cover(rounds[1], tensor_ranks);
        if (rank == 0) {
          first = rounds;
          continue;
        }
        for (std::size_t i = 0; i < rounds[1].matrices.size(); ++i) {
          EXPECT_EQ(rounds[1].matrices[i].data, first[1].matrices[i].data);
          EXPECT_EQ(rounds[1].matrices[i].tensor, first[1].matrices[i].tensor);
        }
      }
    }
}

// No owner has more than the average and the largest matrix.
TEST(MatrixOwners, WorkIsBalanced) {
  ParameterSet parameters({.rank = 1, .ranks = 2});
  const MatrixRound round = rounds_of(parameters, 2, 1 << 24)[1];
  double all = 0, largest = 0;
  std::vector<double> loads(4);
  for (const Matrix& m : round.matrices) {
    const double work = newton_schulz_flops(m.rows, m.columns);
    loads[static_cast<std::size_t>(m.data * 2 + m.tensor)] += work;
    all += work, largest = std::max(largest, work);
  }
  EXPECT_EQ(loads, round.loads);
  EXPECT_LE(*std::ranges::max_element(loads), all / 4 + largest);
  EXPECT_GT(*std::ranges::min_element(loads), 0);
}

// Small rounds end where no tile is left over.
TEST(MatrixOwners, RoundsKeepTilesTogether) {
  ParameterSet parameters;
  const std::vector<MatrixRound> rounds = rounds_of(parameters, 1, 1);
  ASSERT_EQ(rounds.size(), 7u);  // the embedding; for each layer its bucket, and those of tiles
  for (std::size_t l = 0; l < 3; ++l) {
    const MatrixRound &layer = rounds[1 + 2 * l], &tiles = rounds[2 + 2 * l];
    EXPECT_EQ(layer.first, 1 + 3 * l);
    EXPECT_EQ(layer.count, 1u);
    EXPECT_EQ(tiles.first, 2 + 3 * l);
    EXPECT_EQ(tiles.count, 2u);
    expect_cover(layer, 1);
    expect_cover(tiles, 1);
  }
}

}  // namespace
}  // namespace choir
