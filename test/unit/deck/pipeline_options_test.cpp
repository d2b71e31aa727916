#include "choir/deck/pipeline_options.hpp"

#include <gtest/gtest.h>

#include "src/parallel/pipeline/pipeline_executor.hpp"

namespace choir {
namespace {

// Equal options share one object; any difference gives another object.
TEST(TrainingSchedule, IsOfWhatWasAskedForLast) {
  struct Request {
    PipelineOptions options;
    int stages, micro_batches;
    DeviceKind device;
  };
  const PipelineOptions plain,
      interleaved{.schedule = ScheduleKind::interleaved, .virtual_stages = 2};
  const Request requests[] = {
      {plain, 4, 8, DeviceKind::cpu},         {plain, 4, 8, DeviceKind::cuda},
      {plain, 4, 12, DeviceKind::cuda},       {plain, 2, 12, DeviceKind::cuda},
      {interleaved, 2, 12, DeviceKind::cuda}, {plain, 4, 8, DeviceKind::cpu}};
  for (const Request& r : requests) {
    const auto made = training_schedule(r.options, r.stages, r.micro_batches, r.device);
    const Schedule expected = make_schedule(
        r.options.schedule,
        {.stages = r.stages, .micro_batches = r.micro_batches, .chunks = r.options.virtual_stages},
        exchange_for(r.device));
    EXPECT_EQ(made->kind, expected.kind);
    EXPECT_EQ(made->shape, expected.shape);
    EXPECT_EQ(made->exchange, expected.exchange);
    EXPECT_EQ(made->actions, expected.actions);
    EXPECT_EQ(training_schedule(r.options, r.stages, r.micro_batches, r.device), made);
  }
}

}  // namespace
}  // namespace choir
