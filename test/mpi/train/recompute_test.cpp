// Tests of recomputation in layers that several ranks share: forward runs again with its
// communication, and no bit of the training changes.
#include <gtest/gtest.h>

#include "test/mpi/train/curve.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

using test::Curve;
using test::kMicroBatches;

/// 7 tokens per sequence: most numbers of ranks cannot divide the rows, and a share ends inside a
/// sequence.
GptConfig recomputed_gpt() {
  GptConfig c = test::tiny_gpt();
  c.block_size = 7;
  c.n_head = c.n_kv_head = 12;
  c.n_embd = 48;
  c.ffn_width = 96;
  c.dropout = 0.2;
  return c;
}

GptConfig recomputed_llama() {
  GptConfig c = recomputed_gpt();
  c.n_kv_head = 1;  // held by every rank
  c.bias = false;
  c.norm = ops::Norm::rmsnorm;
  c.activation = ops::Activation::swiglu;
  c.position = Position::rope;
  return c;
}

Curve train_recomputing(const GptConfig& model, const char* precision, bool sequence,
                        Recompute recompute, Mesh& mesh) {
  EngineOptions options =
      test::engine_options(model, precision, kMicroBatches / mesh.along(Axis::data).size());
  options.sequence = sequence;
  options.model.as<GptConfig>().recompute = recompute;
  test::EngineRun run(options, mesh);
  Curve curve;
  curve.losses = run.losses(3);
  curve.state = run.state();
  EXPECT_ALL_RANKS(run.engine().instance().arena().peak() == run.plan().arena_bytes);
  return curve;
}

TEST(SharedRecompute, ChangesNoBit) {
  GptConfig tanh = recomputed_gpt();
  tanh.activation = ops::Activation::gelu_tanh;
  for (int t = 1; t <= test::world_size(); ++t) {
    if (test::world_size() % t != 0) continue;
    const auto mesh =
        Mesh::over_world(Layout(t, 1, test::world_size() / t, 1), Transport::automatic);
    for (const GptConfig& model : {recomputed_gpt(), tanh, recomputed_llama()})
      for (const char* precision : {"fp64", "fp32", "bf16-mixed"})
        for (const bool sequence : {false, true}) {
          if (sequence && t == 1) continue;
          const Curve kept = train_recomputing(model, precision, sequence, Recompute::none, *mesh);
          for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
            const Curve again = train_recomputing(model, precision, sequence, recompute, *mesh);
            EXPECT_ALL_RANKS(test::same_bits(kept.losses, again.losses) &&
                             test::same_bits(kept.state, again.state))
                << precision << ", " << mesh->layout().to_string() << (sequence ? ", sequence" : "")
                << ": " << test::distance(kept.state, again.state);
          }
        }
  }
}

// A layer keeps its input: whole on every rank, or a share of the rows. 16 tokens of 48 values in
// fp64.
TEST(SharedRecompute, FullKeepsAShareOfTheEntrance) {
  const int ranks = test::world_size();
  if (16 % ranks != 0) GTEST_SKIP() << "needs 2^n ranks";
  const auto planned = [&](std::int64_t layers, bool sequence) {
    EngineOptions options = test::engine_options(recomputed_gpt(), "fp64", 1);
    options.model.as<GptConfig>().block_size = 8;
    options.model.as<GptConfig>().n_layer = layers;
    options.model.as<GptConfig>().recompute = Recompute::full;
    options.sequence = sequence;
    return plan_step(options, Layout(ranks, 1, 1, 1), 0, ranks, false).arena_bytes;
  };
  const std::size_t whole = sizeof(double) * 16 * 48;
  EXPECT_ALL_RANKS(planned(12, false) - planned(4, false) == 8 * whole);
  EXPECT_ALL_RANKS(planned(12, true) - planned(4, true) ==
                   8 * whole / static_cast<std::size_t>(ranks));
}

}  // namespace
}  // namespace choir
