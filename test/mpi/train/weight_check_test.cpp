// A bit of a weight turns on one rank: the rank and the parameter are named on all of them.
#include "choir/train/weight_check.hpp"

#include <gtest/gtest.h>

#include "choir/core/error.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

std::string complaint(Engine& engine) {
  try {
    check_weights(engine, 40);
  } catch (const NumericError& error) {
    return error.what();
  }
  return "";
}

/// Turns a bit of the middle of the last parameter of this rank.
std::string turn_a_bit(Engine& engine) {
  const Parameter* last = engine.instance().parameters().all().back();
  const ZeroOptions& zero = engine.options().zero;
  const TensorView& memory = zero.stage == 0 ? last->master : last->value;
  static_cast<unsigned char*>(memory.data)[memory.bytes() / 2] ^= 0x10;
  return last->name;
}

void turned_bit_is_found(const Layout& layout, int stage, int culprit) {
  const auto mesh = Mesh::over_world(layout, Transport::automatic);
  EngineOptions options = test::engine_options(test::tiny_gpt(), "bf16-mixed", 2);
  options.zero.stage = stage;
  test::EngineRun run(options, *mesh);
  run.losses(2);
  Engine& engine = run.engine();
  const std::string before = complaint(engine);
  EXPECT_ALL_RANKS(before.empty()) << before;
  std::string name;
  if (mesh->rank() == culprit) name = turn_a_bit(engine);
  const std::string text = complaint(engine);
  EXPECT_ALL_RANKS(text.find("step 40: weights that should be the same bits differ") != text.npos)
      << text;
  EXPECT_ALL_RANKS(text.find(fmt::format("rank {} on ", culprit)) != text.npos) << text;
  EXPECT_ALL_RANKS(name.empty() || text.find("first in " + name) != text.npos)
      << text << " lacks " << name;
  const bool alone = mesh->replica_ranks().size() > 2;
  const int other = layout.replicas(culprit).front() == culprit ? layout.replicas(culprit).back()
                                                                : layout.replicas(culprit).front();
  const bool other_named = text.find(fmt::format("rank {} on ", other)) != text.npos;
  EXPECT_ALL_RANKS(other_named == !alone) << text;
}

TEST(WeightCheck, FindsTheRankOfATurnedBit) {
  const int ranks = test::world_size();
  if (ranks < 2) GTEST_SKIP() << "one rank has nobody to compare with";
  turned_bit_is_found(Layout(1, 1, ranks, 1), 0, ranks - 1);
}

TEST(WeightCheck, ZeroKeepsWholeValuesToCompare) {
  const int ranks = test::world_size();
  if (ranks < 2) GTEST_SKIP() << "one rank has nobody to compare with";
  turned_bit_is_found(Layout(1, 1, ranks, 1), 1, 0);
}

TEST(WeightCheck, InsideAGroupOfReplicas) {
  const int ranks = test::world_size();
  if (ranks != 4) GTEST_SKIP() << "for 4 ranks";
  turned_bit_is_found(Layout(2, 1, 2, 1), 0, 3);
}

}  // namespace
}  // namespace choir
