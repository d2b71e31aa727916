// Tests the report of a bench about the stages of a real step.
#include "src/lab/bench/bench_pipeline.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "test/support/mpi_test.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

constexpr int kBenchSteps = 5, kBenchMicroBatches = 4;

PipelineBench measured(ScheduleKind kind, int stages) {
  const int size = test::world_size();
  const auto mesh = Mesh::over_world(Layout(1, 1, size / stages, stages), Transport::automatic);
  GptConfig model = test::tiny_gpt();
  model.n_layer = 2 * stages;
  EngineOptions options = test::engine_options(model, "fp32", kBenchMicroBatches);
  options.pipeline = {.schedule = kind,
                      .virtual_stages = kind == ScheduleKind::interleaved ? 2 : 1};
  options.time_actions = true;
  test::EngineRun run(options, *mesh);
  PipelineRecorder recorder(run.engine(), kBenchSteps);
  for (int i = 0; i < kBenchSteps; ++i) {
    run.step();
    recorder.record();
  }
  return recorder.gather(*mesh);
}

bool forward_and_backward_took_time(const ChunkCost& c) {
  return c.forward > 0 && (c.backward > 0) != (c.backward_input > 0 && c.backward_weight > 0);
}

TEST(PipelineBench, EveryStageSpendsTheWholeStep) {
  for (const int stages : {2, 4}) {
    if (test::world_size() % stages != 0) continue;
    for (const ScheduleKind kind :
         {ScheduleKind::one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zb_h1}) {
      const PipelineBench bench = measured(kind, stages);
      const std::string what = to_string(bench);
      ASSERT_ALL_RANKS(std::ssize(bench.stages) == stages) << what;
      EXPECT_ALL_RANKS(
          std::all_of(bench.chunks.begin(), bench.chunks.end(), forward_and_backward_took_time))
          << what;
      const double m = kBenchMicroBatches;
      for (int s = 0; s < stages; ++s) {
        const StageLoss& loss = bench.stages[static_cast<std::size_t>(s)];
        EXPECT_ALL_RANKS(std::abs(loss.busy + loss.bubble + loss.exposed - bench.makespan) <=
                         1e-9 * bench.makespan)
            << what;
        double busy = 0;  // every micro-batch through every piece of the stage
        for (std::size_t u = static_cast<std::size_t>(s); u < bench.chunks.size();
             u += static_cast<std::size_t>(stages)) {
          const ChunkCost& c = bench.chunks[u];
          busy += m * (c.forward + c.backward + c.backward_input + c.backward_weight);
        }
        EXPECT_ALL_RANKS(std::abs(busy - loss.busy) <= 1e-9 * bench.makespan) << what;
        EXPECT_ALL_RANKS(loss.busy < bench.makespan) << what;
      }
      EXPECT_ALL_RANKS(bench.idle() > 0 && bench.bubble() > 0) << what;
      // Equal on every rank, in any pipeline.
      double sum = bench.makespan;
      const auto mesh = Mesh::over_world(Layout(1, 1, test::world_size(), 1), Transport::automatic);
      mesh->world().all_reduce(&sum, 1, DType::f64, ReduceOp::max);
      EXPECT_ALL_RANKS(sum == bench.makespan);
    }
  }
}

}  // namespace
}  // namespace choir
