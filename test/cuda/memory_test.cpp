// The memory that a plan may use of a card: the free part, not the built-in size.
#include "src/run/step_plan.hpp"
#include "src/train/step/memory_fit.hpp"
#include "test/cuda/cuda_fixture.hpp"
#include "test/unit/train/engine_case.hpp"

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

// All but a part of the logits of the head has room.
TEST_F(CudaMemory, TheChunkOfTheHeadIsAsLargeAsTheMemoryAllows) {
  GptConfig model = tiny_gpt();
  model.n_layer = 1, model.tied = false, model.vocab_size = 128256, model.block_size = 4096;
  const auto mesh = Mesh::planned(Layout(), 0, 1);
  const auto planned = [&](bool reproducible, HeadMemory* head) {
    EngineOptions options = engine_options(model, "fp32", 1, reproducible);
    const StepPlan plan = plan_in_memory(options, *mesh, false, device());
    *head = head_memory(options, mesh->layout());
    return plan;
  };
  HeadMemory head;
  const StepPlan plenty = planned(false, &head);
  ASSERT_EQ(head.rows, 1024);
  const double room = static_cast<double>(plenty.memory.total()) - 0.6 * head.bytes;
  ASSERT_GT(free_for_plans(device()), room);
  const Buffer somebody(device(), static_cast<std::size_t>(free_for_plans(device()) - room));
  const StepPlan tight = planned(false, &head);
  EXPECT_EQ(head.rows, 256);
  EXPECT_NO_THROW(require_memory(tight, 1, device()));
  const StepPlan fixed = planned(true, &head);
  EXPECT_EQ(head.rows, 1024) << "reproducible: depends on the model alone";
  EXPECT_THROW(require_memory(fixed, 1, device()), DeckError);
}

}  // namespace
}  // namespace choir::test
