// Tests of several sequences in one pass: layers see only the sequence that the pass selects.
#include <gtest/gtest.h>

#include "src/device/cpu_device.hpp"
#include "src/device/null_device.hpp"
#include "test/support/two_sequences_case.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

TEST(Sequences, OnePassDoesWhatTwoDo) {
  CpuDevice device;
  test::SingleRank single;
  const auto two = test::TwoSequences(device, *single.mesh, false).in_two_passes();
  EXPECT_EQ(two.frames.size(), 3u * 7 * 48);
  EXPECT_EQ(two.tokens.size(), 2u * 4 * 48);
  for (const bool postponed : {false, true}) {
    const auto one = test::TwoSequences(device, *single.mesh, false).in_one_pass(postponed);
    for (const auto list :
         {&test::TwoSequences::Result::frames, &test::TwoSequences::Result::tokens,
          &test::TwoSequences::Result::d_frames, &test::TwoSequences::Result::d_tokens,
          &test::TwoSequences::Result::gradients})
      EXPECT_TRUE(test::same_bits(one.*list, two.*list)) << "postponed " << postponed;
  }
}

TEST(Sequences, EachHasSharesOfItsOwnRows) {
  NullDevice device;
  for (int rank = 0; rank < 4; ++rank) {
    const auto mesh = Mesh::planned(Layout(4, 1, 1, 1), rank, 1);
    test::RankOfContext here(device, *mesh, "fp32", true);
    Pass& pass = here.pass();
    pass.begin(Mode::train, {.batch = 3, .tokens = 7}, 0);
    const int tokens = pass.add_sequence({.batch = 2, .tokens = 5});
    EXPECT_EQ(pass.share_rows(), 6) << "21 rows over 4 ranks";
    EXPECT_EQ(pass.first_share_row(), 6 * rank);
    {
      const Pass::On on(pass, tokens);
      EXPECT_EQ(pass.sequence().tokens, 5);
      EXPECT_EQ(pass.share_rows(), 3) << "10 rows over 4 ranks";
      EXPECT_EQ(pass.first_share_row(), 3 * rank);
      const Pass::On back(pass, 0);
      EXPECT_EQ(pass.share_rows(), 6);
    }
    EXPECT_EQ(pass.share_rows(), 6);
    EXPECT_EQ(pass.sequence().batch, 3);
  }
}

TEST(Sequences, PostponedWorkSpeaksOfItsOwn) {
  CpuDevice device;
  Arena arena(device, 1 << 16);
  Pass pass(Stream(device), arena, precision_of("fp32"), 1);
  pass.begin(Mode::train, {.batch = 1, .tokens = 7}, 0);
  pass.postpone_weight_gradients(true);
  std::vector<std::int64_t> seen;
  const auto note = [](Pass& of, void* list, const Tensor&, const Tensor&) {
    static_cast<std::vector<std::int64_t>*>(list)->push_back(of.sequence().tokens);
  };
  {
    const Pass::On on(pass, pass.add_sequence({.batch = 1, .tokens = 4}));
    pass.weight_gradient({note, &seen, {}, {}});
  }
  pass.weight_gradient({note, &seen, {}, {}});
  pass.run_weight_gradients(0);
  EXPECT_EQ(seen, (std::vector<std::int64_t>{4, 7}));
}

TEST(Sequences, MisuseIsCaught) {
  CpuDevice device;
  Arena arena(device, 1 << 16);
  Pass pass(Stream(device), arena, precision_of("fp32"), 1);
  pass.begin(Mode::train, {.batch = 1, .tokens = 7}, 0);
  EXPECT_THROW(Pass::On(pass, 1), Error) << "there is one sequence";
  const Pass::On on(pass, pass.add_sequence({.batch = 1, .tokens = 4}));
  EXPECT_THROW(pass.begin(Mode::train, {.batch = 1, .tokens = 7}, 0), Error);
}

}  // namespace
}  // namespace choir
