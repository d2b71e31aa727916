// Tests of answers to prompts with clips: they are those of a full pass for each token, with any
// other prompts in the batch.
#include <gtest/gtest.h>

#include "src/run/null_instance.hpp"

#include "test/unit/models/salm/salm_case.hpp"

namespace choir {
namespace {

class SalmGeneratorTest : public testing::Test {
 protected:
  SalmGeneratorTest()
      : instance_({test::tiny_salm(), precision_of("fp64"), 3, false}, device_, *single_.mesh,
                  std::size_t{1} << 24),
        generator_(instance_) {
    test::wake(instance_);
    // Frames of 4 hops of 80 samples, rounded up: 5, 5 and 3 frames, 8 rows each.
    for (const std::int64_t samples : {1600, 1450, 900, 700, 1280})
      clips_.push_back(test::noise(static_cast<std::uint64_t>(clips_.size()), samples));
    prompts_ = {{{3, -1, 5, 6}, {clips_[0]}},
                {{-1, 2, 9, 1}, {clips_[1]}},
                {{7, 8, 4, -1, 11, 12}, {clips_[2]}},
                {{1, 2, -1, 3, -1}, {clips_[3], clips_[4]}}};
  }
  std::vector<double> logits(std::vector<std::size_t> which) {
    std::vector<SalmPrompt> chosen;
    for (const std::size_t i : which) chosen.push_back(prompts_[i]);
    return generator_.logits(chosen);
  }
  static double distance(const std::vector<double>& whole, std::size_t row,
                         const std::vector<double>& alone) {
    double most = 0, largest = 1;
    for (std::size_t i = 0; i < alone.size(); ++i) {
      most = std::max(most, std::abs(whole[row * alone.size() + i] - alone[i]));
      largest = std::max(largest, std::abs(alone[i]));
    }
    return most / largest;
  }

  CpuDevice device_;
  test::SingleRank single_;
  ModelInstance instance_;
  SalmGenerator generator_;
  std::vector<std::vector<std::uint16_t>> clips_;
  std::vector<SalmPrompt> prompts_;
};

TEST_F(SalmGeneratorTest, ScoresDoNotDependOnCompany) {
  ASSERT_EQ(generator_.rows(prompts_[0]), 8);
  ASSERT_EQ(generator_.rows(prompts_[1]), 8);
  ASSERT_EQ(generator_.rows(prompts_[2]), 8);
  const std::vector<std::vector<double>> alone{logits({0}), logits({1}), logits({2})};
  EXPECT_GT(distance(alone[0], 0, alone[1]), 0.01);
  for (const auto& order : {std::vector<std::size_t>{0, 1, 2}, {2, 0, 1}, {1, 2}, {2, 2, 0}}) {
    const std::vector<double> whole = logits(order);
    for (std::size_t row = 0; row < order.size(); ++row)
      EXPECT_LE(distance(whole, row, alone[order[row]]), 1e-12) << order[row];
  }
}

TEST_F(SalmGeneratorTest, HearsWhatItIsAsked) {
  const std::vector<double> before = logits({2});
  clips_[2][450] ^= 0x1000;
  EXPECT_GT(distance(logits({2}), 0, before), 1e-6) << "a sample matters";
  prompts_[2].ids[0] = 9;
  EXPECT_GT(distance(logits({2}), 0, before), 1e-3) << "a token matters";
}

TEST_F(SalmGeneratorTest, AnswersAreTheBestOfTheFullContext) {
  constexpr std::int64_t kTokens = 6;
  const auto answers = generator_.answer(prompts_, kTokens, {.temperature = 0}, 8);
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    SalmPrompt context = prompts_[i];
    ASSERT_EQ(std::ssize(answers[i]), kTokens);
    for (const std::int32_t token : answers[i]) {
      const std::vector<double> scores = generator_.logits({&context, 1});
      EXPECT_EQ(token, std::max_element(scores.begin(), scores.end()) - scores.begin());
      context.ids.push_back(token);
    }
  }
  for (const std::int64_t together : {1, 2})
    EXPECT_EQ(generator_.answer(prompts_, kTokens, {.temperature = 0}, together), answers);
  std::vector<SalmPrompt> reversed(prompts_.rbegin(), prompts_.rend());
  auto back = generator_.answer(reversed, kTokens, {.temperature = 0}, 8);
  std::ranges::reverse(back);
  EXPECT_EQ(back, answers);
}

TEST_F(SalmGeneratorTest, AnswersEnd) {
  const auto whole = generator_.answer(prompts_, 6, {.temperature = 0}, 8);
  const std::int32_t stop = whole[0][2];
  const auto cut = generator_.answer(prompts_, 6, {.temperature = 0, .stop = {stop}}, 8);
  for (std::size_t i = 0; i < whole.size(); ++i)
    EXPECT_EQ(cut[i], std::vector<std::int32_t>(whole[i].begin(),
                                                std::find(whole[i].begin(), whole[i].end(), stop)));
  const auto full = generator_.answer({prompts_.data(), 1}, 1000, {.temperature = 0}, 1);
  EXPECT_EQ(std::ssize(full[0]), 64 - 8 + 1) << "each position, and what the last of them says";
}

TEST(SalmPlan, HoldsTheAnswersToABatch) {
  CpuDevice device;
  test::SingleRank single;
  const SalmConfig config = test::tiny_salm();
  const BatchShape shape{.samples = 16, .tokens = 9, .audio_samples = 1600, .clips = 16};
  const ModelInstance::Options options{config, precision_of("fp64"), 3, false};
  const StepPlan plan = plan_inference(options, single.mesh->layout(), 0, {shape}, &device);
  ModelInstance instance(options, device, *single.mesh, plan.arena_bytes);
  test::wake(instance);
  std::vector<std::vector<std::uint16_t>> clips;
  for (std::uint64_t i = 0; i < 16; ++i) clips.push_back(test::noise(i, 1600));
  std::vector<SalmPrompt> prompts;
  for (const auto& clip : clips) prompts.push_back({{3, -1, 5, 6, 7}, {clip}});
  SalmGenerator generator(instance);
  const std::int64_t together = generator.together(shape.samples, shape.tokens);
  EXPECT_EQ(together, 2);
  const auto answers = generator.answer(prompts, 100, {.temperature = 0}, together);
  EXPECT_EQ(std::ssize(answers.back()), 64 - 9 + 1);
}

}  // namespace
}  // namespace choir
