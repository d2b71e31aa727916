// Tests that training is the same on any number of ranks: it is compared with one rank that each
// process runs alone.
#include <gtest/gtest.h>

#include "src/comm/agreement.hpp"
#include "test/mpi/train/curve.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

using test::Curve;
using test::train_one_replica;
using test::train_replicas;
using test::world_mesh;

TEST(DataParallel, AnyNumberOfRanksTrainsTheSameInFp64) {
  GptConfig dropped = test::tiny_gpt();
  dropped.dropout = 0.2;
  for (const GptConfig& model : {test::tiny_gpt(), test::tiny_llama(), dropped}) {
    const EngineOptions options = test::engine_options(model, "fp64", 1);
    const Curve one = train_one_replica(options, 12);
    for (const Transport transport : {Transport::mpi, Transport::automatic}) {
      const auto mesh = world_mesh(transport);
      const Curve many = train_replicas(options, *mesh, 12);
      EXPECT_ALL_RANKS(test::distance(one.losses, many.losses) <= 1e-12)
          << test::distance(one.losses, many.losses);
      EXPECT_ALL_RANKS(test::distance(one.state, many.state) <= 1e-12)
          << test::distance(one.state, many.state);
    }
  }
}

TEST(DataParallel, TransportsAgree) {
  const EngineOptions options = test::engine_options(test::tiny_gpt(), "bf16-mixed", 1);
  const auto mpi = world_mesh(Transport::mpi);
  const auto node = world_mesh(Transport::automatic);
  EXPECT_STREQ(node->along(Axis::data).transport(),
               test::world_size() > 1 ? "node" : node->along(Axis::data).transport());
  const Curve a = train_replicas(options, *mpi, 12), b = train_replicas(options, *node, 12);
  // Orders of summation differ by roundings of 2^-24, which bf16 activations may amplify to steps
  // of 2^-8.
  EXPECT_ALL_RANKS(test::distance(a.losses, b.losses) <= 0.02);
}

TEST(Reproducible, SameBitsForAnyFactorisation) {
  if (!test::power_of_two_ranks()) GTEST_SKIP() << "powers of two only";
  GptConfig dropped = test::tiny_gpt();
  dropped.dropout = 0.2;
  for (const char* precision : {"fp32", "bf16-mixed", "bf16-true", "fp16-mixed"})
    for (const GptConfig& model : {test::tiny_gpt(), test::tiny_llama(), dropped}) {
      const EngineOptions options = test::engine_options(model, precision, 1, true);
      const Curve one = train_one_replica(options, 8);
      for (const Transport transport : {Transport::mpi, Transport::automatic}) {
        const auto mesh = world_mesh(transport);
        const Curve many = train_replicas(options, *mesh, 8);
        EXPECT_ALL_RANKS(test::same_bits(one.losses, many.losses)) << precision;
        EXPECT_ALL_RANKS(test::same_bits(one.state, many.state))
            << precision << " " << test::distance(one.state, many.state);
      }
    }
}

// Accumulation without the tree gives other bits: the comparison above can fail.
TEST(Reproducible, NegativeControl) {
  const Curve tree = train_one_replica(test::engine_options(test::tiny_gpt(), "fp32", 1, true), 8);
  const Curve chain =
      train_one_replica(test::engine_options(test::tiny_gpt(), "fp32", 1, false), 8);
  EXPECT_ALL_RANKS(!test::same_bits(tree.state, chain.state));
  EXPECT_ALL_RANKS(test::distance(tree.losses, chain.losses) < 1e-3);
}

// A rank that reads a wrong sample is detected.
TEST(DataParallel, NegativeControl) {
  if (test::world_size() == 1) GTEST_SKIP() << "needs another rank";
  const EngineOptions options = [] {
    EngineOptions o = test::engine_options(test::tiny_gpt(), "fp64", 1);
    o.micro_batches = 12 / test::world_size();
    return o;
  }();
  const Curve one = train_one_replica(options, 12, 3);
  const auto mesh = world_mesh(Transport::automatic);
  test::EngineRun run(options, *mesh);
  for (int step = 0; step < 3; ++step) {
    const auto batch_of = [&](std::int64_t j) {
      const bool wrong = mesh->rank() == 1 && step == 1 && j == 0;
      return run.batch(run.engine().micro_batch_index(step, j) + (wrong ? 1000 : 0));
    };
    run.engine().step(step, batch_of, run.tokens_of_step(), run.clock());
    run.engine().finish(run.clock());
  }
  EXPECT_ALL_RANKS(test::distance(one.state, run.state()) > 1e-9);
}

// A rank whose weights drifted is named before it causes damage.
TEST(DataParallel, DriftedWeightsAreFound) {
  if (test::world_size() == 1) GTEST_SKIP() << "needs another rank";
  const auto mesh = world_mesh(Transport::automatic);
  test::EngineRun run(test::engine_options(test::tiny_gpt(), "fp32", 1), *mesh);
  if (mesh->rank() == 1)
    run.engine().instance().parameters().parameters()[2].master.as<float>()[5] += 1e-7f;
  bool thrown = false;
  try {
    require_equal(mesh->world(), run.engine().instance().storage().digest(), "parameters");
  } catch (const CommError&) {
    thrown = true;
  }
  EXPECT_ALL_RANKS(thrown);
}

// NaN on one rank: all ranks skip the update.
TEST(DataParallel, NanOnOneRankSkipsEverywhere) {
  const auto mesh = world_mesh(Transport::automatic);
  EngineOptions options = test::engine_options(test::tiny_gpt(), "fp32", 1);
  options.compare_counts = false;  // one rank is told another number of tokens below
  test::EngineRun run(options, *mesh);
  run.losses(2);
  const std::vector<double> before = run.state();
  const bool victim = mesh->rank() == mesh->world().size() - 1;
  const StepResult result = run.step(victim ? NAN : run.tokens_of_step());
  EXPECT_ALL_RANKS(!result.updated);
  EXPECT_ALL_RANKS(test::same_bits(before, run.state()));
  EXPECT_ALL_RANKS(run.step().updated) << "the next step is clean again";
}

}  // namespace
}  // namespace choir
