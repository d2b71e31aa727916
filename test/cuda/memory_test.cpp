// The memory that a plan may use of a card: the free part, not the built-in size.
#include "src/run/step_plan.hpp"
#include "test/cuda/cuda_fixture.hpp"

namespace choir::test {
namespace {

class CudaMemory : public CudaTest {};

TEST_F(CudaMemory, WhatSomebodyHasIsNotPlannedWith) {
  constexpr std::size_t kTaken = std::size_t{64} << 20, kMargin = kTaken / 2;
  const std::size_t free = cuda::free_memory(device());
  ASSERT_LE(free, cuda::card_of(device())->memory);
  StepPlan plan;
  plan.memory.add("parameters", static_cast<std::size_t>(free_for_plans(device())) - kMargin);
  EXPECT_NO_THROW(require_memory(plan, 1, device()));
  const Buffer somebody(device(), kTaken);
  EXPECT_LE(cuda::free_memory(device()), free - kTaken);
  EXPECT_THROW(require_memory(plan, 1, device()), DeckError);
}

}  // namespace
}  // namespace choir::test
