// Tests of frozen weights that are kept in the type of computation (Precision::frozen): in every
// layout they give the bits of the run that keeps masters of them, too, and a rank needs less
// memory.
#include <gtest/gtest.h>

#include "test/mpi/train/curve.hpp"

namespace choir {
namespace {

using test::Curve;
using test::kMicroBatches;
using test::train;

struct Place {
  Layout layout;
  ZeroOptions zero{};
  OffloadOptions offload{};
};

std::vector<Place> places() {
  const int n = test::world_size();
  std::vector<Place> list;
  for (const int stage : {0, 1, 3}) list.push_back({Layout(1, 1, n, 1), {.stage = stage}});
  list.push_back({Layout(1, 1, n, 1),
                  {.stage = 2},
                  {.place = MemoryPlace::file, .directory = testing::TempDir()}});
  if (4 % n != 0) return list;  // heads
  list.push_back({Layout(n, 1, 1, 1)});
  list.push_back({Layout(1, n, 1, 1), {.stage = 3}});
  list.push_back({Layout(1, 1, 1, n)});
  if (n == 4) list.push_back({Layout(2, 1, 2, 1), {.stage = 3, .prefetch = 0}});
  return list;
}

EngineOptions adapted() {
  GptConfig model = test::tiny_llama();
  model.n_layer = 4;
  model.dropout = 0.1;
  model.lora = {.rank = 2, .alpha = 4, .targets = {"all"}};
  EngineOptions options = test::engine_options(model, "bf16-mixed", kMicroBatches);
  options.freezing.unfreeze = {"*norm*"};  // a bucket has both
  options.grad_clip = 0.5;
  return options;
}

std::size_t bytes_of(const EngineOptions& options, const Layout& layout, const char* name) {
  return plan_step(options, layout, test::world_rank(), test::world_size(), false)
      .memory.bytes_of(name);
}

TEST(FrozenPrecision, TheBitsOfMastersInEveryLayout) {
  for (const Place& place : places()) {
    const int data = place.layout.size(Axis::data);
    if (kMicroBatches % data != 0) continue;
    EngineOptions options = adapted();
    options.zero = place.zero;
    options.offload = place.offload;
    const std::string name = fmt::format("{} stage {}{}", place.layout.to_string(),
                                         place.zero.stage, place.offload.any() ? " offloaded" : "");
    const auto mesh = Mesh::over_world(place.layout, Transport::automatic);
    const Curve wide = train(options, *mesh, 3);
    EngineOptions less = options;
    less.precision = with_narrow_frozen(options.precision);
    const Curve narrow = train(less, *mesh, 3);
    EXPECT_ALL_RANKS(test::same_bits(wide.losses, narrow.losses)) << name;
    EXPECT_ALL_RANKS(test::same_bits(wide.norms, narrow.norms)) << name;
    EXPECT_ALL_RANKS(wide.state.size() == narrow.state.size() &&
                     test::distance(wide.state, narrow.state) <= 0x1p-8)
        << name << ": frozen weights are rounded";
    EXPECT_ALL_RANKS(!test::same_bits(wide.state, narrow.state))
        << name << ": the comparison can fail";
    options.micro_batches = less.micro_batches = kMicroBatches / data;
    const std::size_t before = bytes_of(options, place.layout, "parameters, master"),
                      after = bytes_of(less, place.layout, "parameters, master");
    EXPECT_ALL_RANKS(after < before / 2) << name << ": " << before << " " << after;
  }
}

}  // namespace
}  // namespace choir
