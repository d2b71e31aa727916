// Tests of the executor without other ranks: a single stage, a stage whose peers only count, and
// errors.
#include "src/parallel/pipeline/pipeline_executor.hpp"

#include <gtest/gtest.h>

#include "choir/core/error.hpp"
#include "choir/parallel/pipeline/schedule.hpp"
#include "src/comm/null_communicator.hpp"
#include "test/support/pipeline_case.hpp"

namespace choir {
namespace {

TEST(PipelineExecutor, ChunksOfOneStageHandOverInMemory) {
  const auto cpu = make_device(DeviceKind::cpu);
  const auto comm = make_null_communicator("pp", 0, 1);
  test::each_run(1, [&](ScheduleKind kind, const PipelineShape& shape) {
    test::FakeStage stage(*cpu, shape, 0, 7);
    PipelineExecutor executor(make_schedule(kind, shape), *comm);
    executor.run(stage);
    EXPECT_EQ(stage.complaint(kind == ScheduleKind::forward_only), "")
        << test::name_of_case(kind, shape);
    EXPECT_TRUE(executor.times().empty());
  });
  EXPECT_EQ(comm->traffic().calls, 0);
}

/// Returns a tensor if none is expected, or none if one is expected.
class ForgetfulStage final : public StageWork {
 public:
  explicit ForgetfulStage(Arena& arena) : arena_(arena) {}
  Tensor receive_buffer(int, int, bool) override {
    return arena_.allocate(DType::f32, {4}, "message");
  }
  Tensor forward(int j, int, Tensor) override {
    return j == 1 ? Tensor() : receive_buffer(j, 0, false);
  }
  Tensor backward(int, int, Tensor, bool) override { return {}; }
  void backward_weight(int, int) override {}

 private:
  Arena& arena_;
};

TEST(PipelineExecutor, MissingOutputIsNamed) {
  const auto null = make_device(DeviceKind::null);
  Arena arena(*null, Arena::kUnbounded);
  ForgetfulStage stage(arena);
  const auto comm = make_null_communicator("pp", 0, 2);
  PipelineExecutor executor(make_schedule(ScheduleKind::gpipe, {2, 3}), *comm);
  const std::string error = test::error_of([&] { executor.run(stage); });
  EXPECT_NE(error.find("stage 0: forward of micro-batch 1, chunk 0 gave no tensor"),
            std::string::npos)
      << error;
}

/// Takes part in a collective that fails.
class FailingStage final : public StageWork {
 public:
  Tensor receive_buffer(int, int, bool) override { return {}; }
  Tensor forward(int j, int, Tensor) override {
    if (j == 2) throw CommError("all_reduce on tp failed", "look there");
    return {};
  }
  Tensor backward(int, int, Tensor, bool) override { return {}; }
  void backward_weight(int, int) override {}
};

TEST(PipelineExecutor, CommErrorsNamePhaseStageAndAction) {
  FailingStage stage;
  const auto comm = make_null_communicator("pp", 0, 1);
  PipelineExecutor executor(make_schedule(ScheduleKind::gpipe, {1, 3}), *comm);
  try {
    executor.run(stage, "step 12");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const CommError& error) {
    EXPECT_STREQ(error.what(),
                 "step 12: stage 0 of 1, forward of micro-batch 2, chunk 0: all_reduce on tp "
                 "failed");
    EXPECT_EQ(error.hint(), "look there");
  }
}

TEST(PipelineExecutor, NeedsARankForEachStageAndAValidSchedule) {
  const auto comm = make_null_communicator("pp", 0, 3);
  EXPECT_THROW(PipelineExecutor(make_schedule(ScheduleKind::gpipe, {2, 3}), *comm), Error);
  Schedule broken = make_schedule(ScheduleKind::gpipe, {3, 3});
  std::swap(broken.actions[2][0], broken.actions[2][1]);
  EXPECT_THROW(PipelineExecutor(broken, *comm), Error);
}

using Kind = ActionKind;

TEST(PipelineTimes, MeansOfEachChunkAndKind) {
  const std::vector<ActionTime> times{{{Kind::forward, 0, 0}, 1, 2},
                                      {{Kind::forward, 1, 0}, 2, 5},
                                      {{Kind::receive_gradient, 0, 0}, 0, 90},
                                      {{Kind::backward, 0, 1}, 5, 9},
                                      {{Kind::backward_weight, 0, 1}, 9, 9.5}};
  const auto costs = mean_costs(times, 2);
  EXPECT_EQ(costs[0].forward, 2);
  EXPECT_EQ(costs[0].backward, 0);
  EXPECT_EQ(costs[1].forward, 0);
  EXPECT_EQ(costs[1].backward, 4);
  EXPECT_EQ(costs[1].backward_weight, 0.5);
}

// 1F1B of 4 stages and 8 micro-batches, forward 1 and backward 2, has a makespan of 33, and each
// stage is busy for 24; a run of 36 has lost 3 more.
TEST(PipelineTimes, LossesOfAStage) {
  const Schedule schedule = make_schedule(ScheduleKind::one_f_one_b, {4, 8});
  for (const StageLoss& loss : stage_losses(schedule, std::vector<ChunkCost>(4), 36)) {
    EXPECT_DOUBLE_EQ(loss.busy, 24);
    EXPECT_DOUBLE_EQ(loss.bubble, 9);
    EXPECT_DOUBLE_EQ(loss.exposed, 3);
  }
}

TEST(ForwardOnly, HasEveryForwardAndPassesTheValidator) {
  for (int p = 1; p <= 8; ++p)
    for (int m = 1; m <= 16; ++m)
      for (int v = 1; v <= 3; ++v)
        for (const Exchange exchange : test::kExchanges) {
          const PipelineShape shape{p, m, v};
          const Schedule schedule = make_schedule(ScheduleKind::forward_only, shape, exchange);
          validate(schedule);
          std::size_t forwards = 0, messages = 0;
          for (const ActionList& list : schedule.actions)
            for (const Action& a : list) ++(a.kind == Kind::forward ? forwards : messages);
          EXPECT_EQ(forwards, static_cast<std::size_t>(p * m * v));
          EXPECT_EQ(messages, static_cast<std::size_t>(p > 1 ? 2 * m * (p * v - 1) : 0));
        }
}

// The pipeline fills once: (p - 1 + m) forwards.
TEST(ForwardOnly, Makespan) {
  const Schedule schedule = make_schedule(ScheduleKind::forward_only, {4, 8});
  EXPECT_DOUBLE_EQ(simulate(schedule, uniform_costs(schedule.shape, {})).makespan, 11);
  EXPECT_EQ(test::short_form(make_schedule(ScheduleKind::forward_only, {2, 2}), 1),
            "<a0 F0 <a1 F1");
}

TEST(ForwardOnly, OtherActionsAreRefused) {
  Schedule schedule = make_schedule(ScheduleKind::forward_only, {2, 2});
  schedule.actions[1].push_back({Kind::backward, 0, 0});
  const std::string error = test::error_of([&] { validate(schedule); });
  EXPECT_NE(error.find("stage 1: backward of micro-batch 0, chunk 0 is not part of a forward-only"),
            std::string::npos)
      << error;
  schedule.actions[1].pop_back();
  schedule.actions[0].pop_back();
  EXPECT_NE(test::error_of([&] { validate(schedule); }).find("is missing"), std::string::npos);
}

}  // namespace
}  // namespace choir
