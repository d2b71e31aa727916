#pragma once
// A deck, and cases made from it, for tests of planning.
#include <string>
#include <vector>

#include "src/lab/plan/layout_search.hpp"
#include "test/support/families.hpp"

namespace choir::test {

/// The 19 symbols cannot be divided among tensor ranks.
inline const char* const kPlanDeck = R"({
  "model": {"n_layer": 3, "n_head": 8, "n_embd": 64, "block_size": 16, "vocab_size": 19},
  "data": {"format": "synthetic"},
  "train": {"micro_batch_size": 2, "global_batch_size": 192, "max_steps": 10},
  "eval": {"sample_tokens": 8}
})";

inline constexpr double kPlenty = 1e15;  // bytes of memory

inline DeckVariants variants(std::vector<std::string> overrides = {}) {
  return DeckVariants(test::families(), kPlanDeck, "plan_case.json", std::move(overrides));
}

inline PlanCase plan_case(const DeckVariants& decks, int ranks, int ranks_per_node, double memory,
                          const std::vector<std::string>& changes = {}) {
  return {.deck = decks.with(changes),
          .ranks = ranks,
          .ranks_per_node = ranks_per_node,
          .target = {.name = "a test", .kind = DeviceKind::cpu, .memory = memory}};
}

inline double memory_of(const LayoutPlan& plan) {
  return static_cast<double>(plan.fullest().plan.memory.total());
}

}  // namespace choir::test
