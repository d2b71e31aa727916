// Tests of the calls of a planned step: their number, and the part of the step that can hide them.
#include <gtest/gtest.h>

#include "src/device/null_device.hpp"
#include "test/unit/train/speech_case.hpp"

namespace choir {
namespace {

WorkRecord planned_record(const EngineOptions& options, const Layout& layout) {
  WorkRecord record;
  plan_step(options, layout, 0, layout.ranks(), false, nullptr, false, &record);
  return record;
}

/// Number of all-reduces among `ranks` ranks (0: any number) of an axis in a part of the step.
std::int64_t all_reduces(const WorkRecord& record, WorkPart part, std::string_view axis,
                         int ranks = 0) {
  std::int64_t sum = 0;
  for (const auto& [place, work] : record.places)
    for (const auto& [call, count] : work.calls) {
      const CallGroup& group = record.groups[static_cast<std::size_t>(call.group)];
      if (place.part == part && group.axis == axis && (ranks == 0 || group.ranks == ranks) &&
          call.kind == CallKind::all_reduce)
        sum += count;
    }
  return sum;
}

GptConfig deep_gpt() {
  GptConfig config = test::tiny_gpt();
  config.n_layer = 6;
  return config;
}

std::int64_t buckets_of(const GptConfig& config) {
  ParameterSet set;
  const Gpt model(config, set);
  set.place(1);
  return std::ssize(set.buckets());
}

// Groups of two among eight ranks: four replicas, whose all-reduces are the only ones of four.
TEST(StepCalls, SlicesAreSummedOverReplicasDuringTheBackwardPass) {
  for (const int stage : {1, 2, 3})
    for (const std::int64_t micro_batches : {1, 2}) {
      EngineOptions options = test::engine_options(deep_gpt(), "bf16-mixed", micro_batches);
      options.zero = {.stage = stage, .group = 2};
      const WorkRecord record = planned_record(options, Layout(1, 1, 8, 1));
      const std::int64_t early = all_reduces(record, WorkPart::backward, "dp", 4),
                         late = all_reduces(record, WorkPart::gradients, "dp", 4);
      EXPECT_EQ(late, GradientReducer::kInFlight) << stage;
      EXPECT_EQ(early + late, buckets_of(deep_gpt())) << stage;
    }
}

// A slice that is a whole bucket needs no sum over the group.
TEST(StepCalls, GroupsOfOneRankSumTheirReplicasDuringTheBackwardPass) {
  EngineOptions options = test::engine_options(deep_gpt(), "bf16-mixed", 1);
  for (const int stage : {1, 2}) {
    options.zero = {.stage = stage, .group = 1};
    const WorkRecord record = planned_record(options, Layout(1, 1, 4, 1));
    EXPECT_EQ(all_reduces(record, WorkPart::backward, "dp"), buckets_of(deep_gpt())) << stage;
    EXPECT_EQ(all_reduces(record, WorkPart::gradients, "dp"), 0) << stage;
  }
}

// One message for each axis: losses, targets and the sums of the norm together.
TEST(StepCalls, LossesAndTheNormAreReducedTogether) {
  const Layout layout(2, 1, 2, 2);
  EngineOptions options = test::engine_options(test::tiny_llama(), "fp32", 2);
  const auto calls = [&](const char* axis) {
    const WorkRecord record = planned_record(options, layout);
    return all_reduces(record, WorkPart::update, axis) +
           all_reduces(record, WorkPart::gradients, axis);
  };
  for (const char* axis : {"dp", "tp", "pp"}) EXPECT_EQ(calls(axis), 1) << axis;
  options.reproducible = true;  // where the sums are those of all chunks
  for (const char* axis : {"dp", "tp", "pp"}) EXPECT_EQ(calls(axis), 2) << axis;
}

TEST(StepCalls, StatisticsOfAllNormsAreSummedInOneMessage) {
  FastConformerConfig model = test::batch_normed();
  model.n_layer = 5;
  const WorkRecord record =
      planned_record(test::speech_options(model, "fp32", 2), Layout(1, 1, 2, 1));
  EXPECT_EQ(all_reduces(record, WorkPart::update, "dp"), 2) << "losses and norm; statistics";
}

/// The buckets whose gradients are reported complete.
class ReportedBuckets final : public BucketHooks {
 public:
  void gradients_ready(int bucket) override { buckets.push_back(bucket); }
  std::vector<int> buckets;
};

// Sums over tensor ranks are awaited when the next bucket is ready, or at once where whole
// gradients have only a few slots.
TEST(StepCalls, PartialGradientsAreAwaitedOneBucketLater) {
  for (const bool overlapped : {true, false}) {
    NullDevice device;
    const auto mesh = Mesh::planned(Layout(2, 1, 1, 1), 0, 2);
    ParameterSet set({.rank = 0, .ranks = 2, .sequence = true});
    const Gpt model(test::tiny_gpt(), set);
    ParameterStorage storage(set, precision_of("fp32"), device, mesh->along(Axis::data), true);
    ReportedBuckets reported;
    PartialGradients partial(set, device, DType::f32, mesh->along(Axis::tensor),
                             {.overlapped = overlapped}, reported);
    partial.begin_micro_batch(Stream(device), true);
    std::size_t ready = 0;
    for (int b = static_cast<int>(set.buckets().size()) - 1; b >= 0; --b) {
      partial.gradients_ready(b);
      ++ready;
      const auto& parameters = set.buckets()[static_cast<std::size_t>(b)].parameters;
      const bool parts = std::ranges::any_of(
          parameters, [](const Parameter* p) { return !partial_runs(*p).empty(); });
      EXPECT_EQ(reported.buckets.size(), ready - (overlapped && parts ? 1 : 0)) << b;
    }
    partial.complete_sums();
    EXPECT_EQ(reported.buckets.size(), set.buckets().size());
    EXPECT_EQ(reported.buckets.back(), 0);
  }
}

}  // namespace
}  // namespace choir
