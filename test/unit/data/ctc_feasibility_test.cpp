#include "choir/data/ctc_feasibility.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "choir/core/error.hpp"

namespace choir {
namespace {

TEST(CtcFeasibility, LabelsAndTheirRepeats) {
  EXPECT_EQ(ctc_least_frames({}), 0);
  EXPECT_EQ(ctc_least_frames(std::vector<std::int32_t>{4}), 1);
  EXPECT_EQ(ctc_least_frames(std::vector<std::int32_t>{1, 2, 1, 2}), 4);
  EXPECT_EQ(ctc_least_frames(std::vector<std::int32_t>{1, 1, 1, 2, 2}), 8);
}

TEST(CtcFeasibility, FramesAfterEachHalving) {
  for (const auto& [n, two, four, eight] :
       std::vector<std::array<std::int64_t, 4>>{{0, 0, 0, 0},
                                                {1, 1, 1, 1},
                                                {9, 5, 3, 2},
                                                {1000, 500, 250, 125},
                                                {1001, 501, 251, 126}}) {
    EXPECT_EQ(subsampled_frames(n, 2, false), two);
    EXPECT_EQ(subsampled_frames(n, 4, false), four);
    EXPECT_EQ(subsampled_frames(n, 8, false), eight);
  }
  EXPECT_EQ(subsampled_frames(0, 8, true), 0);
  EXPECT_EQ(subsampled_frames(9, 2, true), 5);
  EXPECT_EQ(subsampled_frames(1000, 8, true), 126);  // 501, 251, 126
  EXPECT_THROW(subsampled_frames(9, 3, false), Error);
}

/// One second: 100 feature frames; 50, 25, 13 after subsampling.
constexpr std::int64_t kSecond = 16000;

TEST(CtcFeasibility, ShareAtEachSubsamplingAndCure) {
  const std::vector<CtcUtterance> utterances = {
      {kSecond, 13}, {kSecond, 14}, {kSecond, 25}, {kSecond, 5}};
  CtcFeasibility found = ctc_feasibility(utterances, {}, false);
  EXPECT_EQ(found.utterances, 4);
  EXPECT_EQ(found.impossible, (std::array<std::int64_t, 3>{0, 0, 2}));
  EXPECT_EQ(found.share(2), 0.5);
  EXPECT_EQ(found.cure(8), 4);
  EXPECT_EQ(found.cure(4), 2);
  EXPECT_EQ(found.cure(2), 0);
  found += ctc_feasibility(std::vector<CtcUtterance>{{kSecond, 26}}, {}, false);
  EXPECT_EQ(found.impossible, (std::array<std::int64_t, 3>{0, 1, 3}));
  EXPECT_EQ(found.cure(8), 2);
  EXPECT_EQ(CtcFeasibility{}.share(0), 0);
}

TEST(CtcFeasibility, WarningNamesSharesAndCure) {
  const std::vector<CtcUtterance> utterances = {
      {kSecond, 13}, {kSecond, 26}, {kSecond, 14}, {kSecond, 5}};
  CtcFeasibility found = ctc_feasibility(utterances, {}, false);
  EXPECT_EQ(
      ctc_warning(found, 8, "char", 100),
      "CTC is impossible for 2 of 4 utterances (50.00 %): at subsampling 8 there are 12.5 "
      "frames a second, fewer than their labels (char) need. At 4: 25.00 %. At 2: none. Cure: "
      "subsampling 2, or a tokenizer of longer units.");
  EXPECT_EQ(ctc_warning(found, 2, "char", 100), "");
  found += ctc_feasibility(std::vector<CtcUtterance>{{kSecond, 51}}, {}, false);
  const std::string hopeless = ctc_warning(found, 4, "char", 100);
  EXPECT_NE(hopeless.find("2 of 5 utterances (40.00 %)"), std::string::npos) << hopeless;
  EXPECT_NE(hopeless.find("At 2: 20.00 %."), std::string::npos) << hopeless;
  EXPECT_NE(hopeless.find("No subsampling cures all"), std::string::npos) << hopeless;
}

}  // namespace
}  // namespace choir
