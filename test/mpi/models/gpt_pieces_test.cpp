// Tests of pieces of a model whose layers are shared by several ranks: each rank sends its own rows
// of the residual stream to the next piece.
#include <gtest/gtest.h>

#include "test/support/mpi_test.hpp"
#include "test/unit/models/pieces_case.hpp"

namespace choir {
namespace {

using test::Chain;
using test::PieceCut;

/// 7 tokens per sequence, two sequences: a share ends inside one, and with 3 or 4 ranks the last
/// has rows of padding.
GptConfig gpt() {
  return {.vocab_size = 19,
          .block_size = 7,
          .n_layer = 2,
          .n_head = 12,
          .n_kv_head = 12,
          .n_embd = 48,
          .ffn_width = 96,
          .dropout = 0.2};
}

struct Result {
  std::vector<double> losses, logits;
  std::map<std::string, std::vector<double>> gradients;
};

/// Two micro-batches in flight; collective over the tensor axis.
Result result(const PieceCut& cut, const TensorAxis& tensor, bool postpone) {
  Chain chain(gpt(), "fp64", cut, 2, tensor);
  chain.forward(0, postpone);
  chain.forward(1, postpone);
  chain.backward(0);
  if (postpone) chain.weight_gradients(0);
  chain.backward(1);
  if (postpone) chain.weight_gradients(1);
  Result r{chain.losses(0), chain.generate({3, 1, 4, 1, 5}, 2), chain.gradients()};
  r.losses.insert(r.losses.end(), chain.losses(1).begin(), chain.losses(1).end());
  chain.check_idle();
  return r;
}

TEST(GptPieces, EqualTheWholeModelOnRanksThatShareLayers) {
  const auto mesh = Mesh::over_world(Layout(test::world_size(), 1, 1, 1), Transport::automatic);
  for (const bool sequence : {false, true}) {
    const TensorAxis tensor{.communicator = &mesh->along(Axis::tensor),
                            .sequence = sequence && test::world_size() > 1,
                            .order = Summation::tree};
    const Result whole = result(test::uncut(gpt(), true), tensor, false);
    for (int parts = 2; parts <= 4; ++parts)
      for (auto& pieces : test::cuts(4, parts))
        for (const bool postpone : {false, true}) {
          const PieceCut cut{pieces, parts, true};
          const Result cut_up = result(cut, tensor, postpone);
          EXPECT_ALL_RANKS(test::same_bits(whole.losses, cut_up.losses)) << to_string(cut);
          EXPECT_ALL_RANKS(test::same_bits(whole.logits, cut_up.logits)) << to_string(cut);
          EXPECT_ALL_RANKS(whole.gradients == cut_up.gradients) << to_string(cut);
        }
  }
}

}  // namespace
}  // namespace choir
