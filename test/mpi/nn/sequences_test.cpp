// Tests of two sequences in one pass over the ranks of the tensor axis, against one rank.
#include <gtest/gtest.h>

#include "src/device/cpu_device.hpp"
#include "test/support/mpi_test.hpp"
#include "test/support/two_sequences_case.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

TEST(SequencesRanks, EqualOneRank) {
  CpuDevice device;
  test::SingleRank single;
  const auto mesh = Mesh::over_world(Layout(test::world_size(), 1, 1, 1), Transport::automatic);
  using Result = test::TwoSequences::Result;
  const Result one = test::TwoSequences(device, *single.mesh, false).in_two_passes();
  for (const bool sequence : {false, true})
    for (const bool postponed : {false, true}) {
      const Result many = test::TwoSequences(device, *mesh, sequence).in_one_pass(postponed);
      for (const auto list : {&Result::frames, &Result::tokens, &Result::d_frames,
                              &Result::d_tokens, &Result::gradients})
        EXPECT_ALL_RANKS(test::distance(one.*list, many.*list) <= 1e-12)
            << "sequence " << sequence << ": " << test::distance(one.*list, many.*list);
    }
}

}  // namespace
}  // namespace choir
