// Memory of a rank at each ZeRO stage, from the plan of layouts of any size.
#include <gtest/gtest.h>

#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

GptConfig model() {
  GptConfig c = test::tiny_gpt();
  c.n_layer = 6;
  c.n_embd = 128;
  c.ffn_width = 512;
  c.vocab_size = 256;
  return c;
}

MemoryPlan plan(const char* precision, int ranks, const ZeroOptions& zero, int rank = 0) {
  EngineOptions options = test::engine_options(model(), precision, 2);
  options.zero = zero;
  return plan_step(options, Layout(1, 1, ranks, 1), rank, ranks, false).memory;
}

double of(const MemoryPlan& plan, std::initializer_list<const char*> names) {
  double sum = 0;
  for (const char* name : names) sum += static_cast<double>(plan.bytes_of(name));
  return sum;
}

/// n parameters of the model above, computed by hand.
double parameters() {
  const double c = 128, h = 512, v = 256, t = 8;
  return v * c + t * c + 6 * (4 * c * c + 4 * c + 2 * c * h + h + c + 4 * c) + 2 * c;
}

TEST(ZeroMemory, EveryStageHoldsItsShare) {
  for (const int ranks : {1, 2, 4, 8}) {
    const double n = parameters();
    const auto expect_share = [&](double bytes, double of_all, const char* what) {
      EXPECT_GE(bytes, of_all) << what << " on " << ranks;
      EXPECT_LE(bytes, 1.05 * of_all) << what << " on " << ranks;  // padding of buckets and tensors
    };
    const MemoryPlan one = plan("bf16-mixed", ranks, {.stage = 1});
    expect_share(of(one, {"optimizer moments"}), 8 * n / ranks, "moments, 1");
    expect_share(of(one, {"parameters, master"}), 4 * n / ranks, "masters, 1");
    expect_share(of(one, {"parameters, compute copy"}), 2 * n, "copy, 1");
    expect_share(of(one, {"gradients"}), 4 * n, "gradients, 1");
    const MemoryPlan two = plan("bf16-mixed", ranks, {.stage = 2});
    expect_share(of(two, {"gradients, slice"}), 4 * n / ranks, "gradients, 2");
    EXPECT_EQ(of(two, {"gradients"}), 0);
    for (const char* precision : {"bf16-mixed", "fp32", "fp64", "bf16-true"}) {
      const MemoryPlan three = plan(precision, ranks, {.stage = 3});
      const Precision p = precision_of(precision);
      const auto word = [](DType type) { return static_cast<double>(size_of(type)); };
      expect_share(of(three, {"parameters, master", "gradients, slice", "optimizer moments",
                              "parameters, compute copy", "gradients"}),
                   (word(p.master) + 3 * word(p.gradient)) * n / ranks, precision);
      // Whole buckets: embedding, the end, and two blocks of six.
      const double block = (n - (256 + 8) * 128 - 256) / 6, live = n - 4 * block;
      expect_share(of(three, {"parameters, whole buckets"}), word(p.compute) * live, "values");
      expect_share(of(three, {"gradients, whole buckets"}), word(p.gradient) * live, "gradients");
    }
  }
}

MemoryPlan tiled_plan(const char* precision, int ranks, int tiles, int prefetch,
                      StepTraffic* traffic = nullptr) {
  EngineOptions options = test::engine_options(model(), precision, 2);
  options.zero = {.stage = 3, .prefetch = prefetch};
  options.model.as<GptConfig>().tile = tiles;
  const StepPlan step = plan_step(options, Layout(1, 1, ranks, 1), 0, ranks, false);
  if (traffic) *traffic = step.traffic;
  return step.memory;
}

// Whole at a time: 1 + prefetch blocks, beside embedding, positions and the end. With tiles these
// blocks have only their attention, norms and last bias, and there are 1 + prefetch tiles of all
// tensors that belong to F / N of the hidden width.
TEST(ZeroMemory, TilesShrinkWhatIsWhole) {
  const double c = 128, h = 512, v = 256, t = 8;
  const auto word = [](DType type) { return static_cast<double>(size_of(type)); };
  for (const int ranks : {1, 4, 8})
    for (const char* precision : {"bf16-mixed", "fp32", "fp64"})
      for (const int prefetch : {0, 1, 2})
        for (const int tiles : {1, 2, 4, 16}) {
          const Precision p = precision_of(precision);
          const MemoryPlan memory = tiled_plan(precision, ranks, tiles, prefetch);
          const double feed_forward = 2 * c * h + h, rest = 4 * c * c + 4 * c + c + 4 * c;
          const double ends = v * c + t * c + 2 * c;
          // The tiles of all six blocks are alike.
          const auto live = [&](double slots) {
            return ends + slots * (rest + feed_forward / tiles);
          };
          const auto expect = [&](const char* line, double elements, DType type) {
            const double bytes = of(memory, {line});
            EXPECT_GE(bytes, word(type) * elements) << line << ", " << tiles << " tiles";
            // Padding: buckets are padded to slices of 64 elements for each rank, tensors to 64.
            const double buckets = 3 + 2 * 3, tensors = 3 + 3 * 15;
            EXPECT_LE(bytes, word(type) * (elements + buckets * 64 * ranks + tensors * 64))
                << line << ", " << tiles << " tiles";
          };
          expect("parameters, whole buckets", live(1 + prefetch), p.compute);
          expect("gradients, whole buckets", live(2), p.gradient);
        }
}

// The bucket that is gathered ahead is the next one, in both directions: no bucket is gathered more
// often than without it, and each at most once per direction.
TEST(ZeroMemory, TilesAreGatheredAheadInTheirOrder) {
  const auto moved = [](int tiles, int prefetch) {
    StepTraffic traffic;
    tiled_plan("fp32", 4, tiles, prefetch, &traffic);
    return traffic[static_cast<std::size_t>(Axis::data)];
  };
  for (const int tiles : {2, 4}) {
    for (const int prefetch : {1, 2, 3}) {
      EXPECT_LE(moved(tiles, prefetch).bytes, moved(tiles, 0).bytes) << tiles << ", " << prefetch;
      EXPECT_LE(moved(tiles, prefetch).calls, moved(tiles, 0).calls) << tiles << ", " << prefetch;
    }
    // Two micro-batches: gathers in both directions and a reduce-scatter of every bucket, and the
    // messages that a step sends to all once.
    const auto buckets = static_cast<std::uint64_t>(3 + 6 * (1 + tiles));
    EXPECT_LE(moved(tiles, 0).calls, 2 * 3 * buckets + 4);
  }
}

/// Checks that `more` is this many times `all`, within the padding of a slice of each of the 8
/// buckets.
void expect_times(std::size_t times, const MemoryPlan& all, const MemoryPlan& more) {
  const std::size_t bytes = times * all.bytes_of("optimizer moments"),
                    padding = times * 8 * ParameterSet::kSliceAlignment * 2 * sizeof(float);
  EXPECT_GE(bytes, more.bytes_of("optimizer moments"));
  EXPECT_LE(bytes, more.bytes_of("optimizer moments") + padding);
}

TEST(ZeroMemory, WithoutSlicesNothingIsPaddedForRanks) {
  const MemoryPlan one = plan("bf16-mixed", 1, {}), many = plan("bf16-mixed", 4096, {});
  for (const char* name : {"parameters, master", "gradients", "optimizer moments"}) {
    EXPECT_GT(one.bytes_of(name), 0u) << name;
    EXPECT_EQ(one.bytes_of(name), many.bytes_of(name)) << name;
  }
}

TEST(ZeroMemory, GroupsHoldMore) {
  const MemoryPlan all = plan("fp32", 8, {.stage = 3}),
                   pairs = plan("fp32", 8, {.stage = 3, .group = 2});
  expect_times(4, all, pairs);
  // Planned as two nodes of four.
  EngineOptions options = test::engine_options(model(), "fp32", 1);
  options.zero = {.stage = 3, .group = ZeroOptions::kNode};
  const MemoryPlan node = plan_step(options, Layout(1, 1, 8, 1), 5, 4, false).memory;
  expect_times(2, all, node);
  // Five ranks with four per node: the nodes have different numbers of ranks.
  EXPECT_THROW(plan_step(options, Layout(1, 1, 5, 1), 0, 4, false), DeckError);
}

TEST(ZeroMemory, PrefetchCostsABlockEach) {
  const auto bytes = [](int prefetch) {
    return plan("fp32", 4, {.stage = 3, .prefetch = prefetch})
        .bytes_of("parameters, whole buckets");
  };
  EXPECT_EQ(bytes(2) - bytes(1), bytes(1) - bytes(0));
  EXPECT_GT(bytes(1), bytes(0));
  EXPECT_EQ(bytes(5), bytes(9)) << "no more slots than blocks";
}

TEST(ZeroMemory, EveryRankTheSame) {
  for (const int stage : {0, 1, 2, 3})
    for (int rank = 1; rank < 3; ++rank)
      EXPECT_EQ(plan("fp32", 3, {.stage = stage}, rank).total(),
                plan("fp32", 3, {.stage = stage}).total());
}

}  // namespace
}  // namespace choir
