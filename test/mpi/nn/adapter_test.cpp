// Layers with adapters over the ranks of the tensor axis are those of one rank.
#include "test/support/adapter_case.hpp"

#include <gtest/gtest.h>

#include "choir/device/cpu_device.hpp"
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
  for (const bool gelu : {false, true})
    for (const bool frozen : {false, true}) {
      test::AdapterOptions options{.gelu = gelu, .frozen = frozen};
      const test::ContextResult one = run_on(*single.mesh, options);
      for (const bool sequence : {false, true}) {
        options.sequence = sequence;
        const test::ContextResult many = run_on(*mesh, options);
        EXPECT_ALL_RANKS(test::distance(one.outputs, many.outputs) <= 1e-12);
        EXPECT_ALL_RANKS(test::distance(one.input_gradients, many.input_gradients) <= 1e-12);
        EXPECT_ALL_RANKS(test::distance(one.gradients, many.gradients) <= 1e-12)
            << "gelu " << gelu << " frozen " << frozen << " sequence " << sequence << ": "
            << test::distance(one.gradients, many.gradients);
      }
    }
}

}  // namespace
}  // namespace choir
