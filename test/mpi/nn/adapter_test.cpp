// Tests that layers with adapters give the same results over ranks of the tensor axis as on one
// rank.
#include "test/support/adapter_case.hpp"

#include <gtest/gtest.h>

#include "src/device/cpu_device.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

test::ContextResult run_on(Mesh& mesh, const test::AdapterOptions& options) {
  CpuDevice device;
  return test::AdaptedLayers(device, mesh, options).run();
}

TEST(AdapterRanks, EqualOneRank) {
  test::SingleRank single;
  const auto mesh = Mesh::over_world(Layout(test::world_size(), 1, 1, 1), Transport::automatic);
  const auto expect_equal = [&](test::AdapterOptions options) {
    const test::ContextResult one = run_on(*single.mesh, options);
    for (const bool sequence : {false, true}) {
      options.sequence = sequence;
      const test::ContextResult many = run_on(*mesh, options);
      EXPECT_ALL_RANKS(test::distance(one.outputs, many.outputs) <= 1e-12);
      EXPECT_ALL_RANKS(test::distance(one.input_gradients, many.input_gradients) <= 1e-12);
      EXPECT_ALL_RANKS(test::distance(one.gradients, many.gradients) <= 1e-12)
          << "gelu " << options.gelu << " frozen " << options.frozen << " sequence " << sequence
          << " dropout " << options.dropout << ": "
          << test::distance(one.gradients, many.gradients);
    }
  };
  for (const bool gelu : {false, true})
    for (const bool frozen : {false, true}) expect_equal({.gelu = gelu, .frozen = frozen});
  expect_equal({.frozen = true, .halves = true});
  expect_equal({.frozen = true, .dropout = 0.25});
}

}  // namespace
}  // namespace choir
