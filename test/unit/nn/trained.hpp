#pragma once
// The state after a short training on one rank, in exactly the memory that was planned.
#include <gtest/gtest.h>

#include <vector>

#include "test/unit/train/engine_case.hpp"

namespace choir::test {

struct Trained {
  std::vector<double> losses, norms, state;
};

inline Trained trained(const EngineOptions& options, int steps) {
  SingleRank single;
  EngineRun run(options, *single.mesh);
  Trained result;
  for (int i = 0; i < steps; ++i) {
    const StepResult step = run.step();
    EXPECT_TRUE(step.updated);
    result.losses.push_back(step.loss);
    result.norms.push_back(step.grad_norm);
  }
  result.state = run.state();
  EXPECT_EQ(run.engine().instance().arena().peak(), run.plan().arena_bytes);
  EXPECT_EQ(run.engine().instance().arena().live(), 0u);
  return result;
}

}  // namespace choir::test
