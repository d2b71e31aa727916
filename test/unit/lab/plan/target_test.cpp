#include "src/lab/plan/target.hpp"

#include <gtest/gtest.h>

#include "test/unit/lab/plan/plan_case.hpp"

namespace choir {
namespace {

TEST(PlanTarget, CardsByTheirKey) {
  const Deck deck = test::variants().with({});
  // The drivers report 140.4, 79.2 and 39.4 GiB; 3 % of that is reserved.
  const PlanTarget h200 = find_target("h200", deck);
  EXPECT_EQ(h200.kind, DeviceKind::cuda);
  EXPECT_NEAR(h200.memory_of_rank(8) / (1 << 30), 0.97 * 140.4, 0.1);
  EXPECT_NEAR(find_target("h100", deck).memory_of_rank(1) / (1 << 30), 0.97 * 79.2, 0.1);
  EXPECT_NEAR(find_target("a100-40", deck).memory_of_rank(1) / (1 << 30), 0.97 * 39.4, 0.1);
  EXPECT_EQ(find_target("A100-40GB", deck).name, find_target("a100-40", deck).name);
  EXPECT_EQ(find_target("NVIDIA_H100_80GB", deck).name, find_target("h100", deck).name);
  EXPECT_EQ(find_target("B200-192GB", deck).name, find_target("b200", deck).name);
  EXPECT_EQ(find_target("AMD-Instinct-MI300X", deck).name, find_target("mi300x", deck).name);
  EXPECT_THROW(find_target("H100-40GB", deck), DeckError);  // another size is another card
  EXPECT_NEAR(find_target("mi300x", deck).memory_of_rank(1) / (1 << 30), 0.97 * 192, 0.1);
  EXPECT_NE(find_target("mi300x", deck).note.find("no kernels"), std::string::npos);
  EXPECT_EQ(find_target("gh200", deck).note, "");
  for (const std::string& key : target_keys())
    EXPECT_GT(find_target(key, deck).memory_of_rank(1), 0) << key;
}

TEST(PlanTarget, RanksShareTheMemoryOfANode) {
  const PlanTarget cpu = find_target("cpu", test::variants().with({}));
  EXPECT_EQ(cpu.kind, DeviceKind::cpu);
  EXPECT_EQ(cpu.memory_of_rank(4), cpu.memory_of_rank(1) / 4);
}

TEST(PlanTarget, FollowsTheDeckHere) {
  const DeckVariants decks = test::variants();
  EXPECT_EQ(find_target("", decks.with({"device=cpu"})).kind, DeviceKind::cpu);
  EXPECT_EQ(find_target("here", decks.with({"train.precision=fp64"})).kind, DeviceKind::cpu);
}

TEST(PlanTarget, RefusesByName) {
  const DeckVariants decks = test::variants();
  try {
    find_target("h300", decks.with({}));
    FAIL();
  } catch (const DeckError& error) {
    EXPECT_STREQ(error.what(), "unknown --target h300");
    EXPECT_EQ(error.hint().find("did you mean h100? legal: a100, a100-40, h100, h200, b200, "), 0u)
        << error.hint();
    EXPECT_NE(error.hint().find("--memory 62"), std::string::npos) << error.hint();
  }
  EXPECT_THROW(find_target("h200", decks.with({"train.precision=fp64"})), DeckError);
}

}  // namespace
}  // namespace choir
