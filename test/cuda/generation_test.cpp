// Tests of generation token by token on the cuda device: recorded and replayed passes give the same
// logits as reading the whole prompt, and as the CPU.
#include "src/models/gpt/generator.hpp"
#include "src/models/gpt/gpt.hpp"
#include "test/cuda/cuda_fixture.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir::test {
namespace {

/// A model far from its timid start.
class Speaker {
 public:
  Speaker(const GptConfig& config, const char* precision, Device& device)
      : instance_({config, precision_of(precision), 3, false}, device, *single_.mesh, 8 << 20),
        generator_(instance_) {
    std::uint64_t seed = 4;
    for (Parameter& p : instance_.parameters().parameters()) {
      HostTensor values = HostTensor::normal(p.master.dtype, p.master.shape, seed++, 0.3);
      device.copy_from_host(p.master.data, values.data(), values.bytes());
    }
    instance_.publish();
  }
  Generator& generator() { return generator_; }

 private:
  SingleRank single_;
  ModelInstance instance_;
  Generator generator_;
};

class CudaGeneration : public CudaTest {
 protected:
  const std::vector<std::int32_t> prompt_{3, 1, 4};
  const TokenChoice best_{.temperature = 0};
};

TEST_F(CudaGeneration, ReplayedPassesSayWhatTheCpuSays) {
  const std::vector<std::int32_t> ids{3, 1, 4, 1, 5, 9, 2, 6};
  CpuDevice cpu;
  for (const GptConfig& config : {tiny_gpt(), tiny_llama()})
    for (const auto& [precision, unit] : {std::pair{"fp32", 0x1p-24}, {"bf16-mixed", 0x1p-8}}) {
      Speaker here(config, "fp32", cpu), there(config, precision, device());
      const auto expected = here.generator().logits(ids), got = there.generator().logits(ids);
      ASSERT_EQ(got.size(), expected.size());
      double largest = 1;
      for (const double l : expected) largest = std::max(largest, std::abs(l));
      for (std::size_t i = 0; i < got.size(); ++i)  // as in models/gpt/generation_test.cpp
        EXPECT_NEAR(got[i], expected[i], 2 * 10 * 4 * unit * largest) << precision << " " << i;
      EXPECT_EQ(there.generator().times().replayed, std::ssize(ids) - 1);
    }
}

// Beyond the block, too, where half of the context is read again.
TEST_F(CudaGeneration, ReplayedPassesSayWhatAPromptSays) {
  for (const GptConfig& config : {tiny_gpt(), tiny_llama()}) {
    Speaker speaker(config, "fp32", device());
    const auto block = static_cast<std::size_t>(config.block_size);
    const auto all = speaker.generator().generate(prompt_, 17, best_);
    EXPECT_GT(speaker.generator().times().replayed, 6);
    ASSERT_EQ(all.size(), prompt_.size() + 17);
    for (std::size_t n = prompt_.size(); n < block; ++n) {
      const std::vector<std::int32_t> so_far(all.begin(),
                                             all.begin() + static_cast<std::ptrdiff_t>(n));
      EXPECT_EQ(speaker.generator().generate(so_far, 1, best_).back(), all[n]) << n;
    }
  }
}

// Texts of other lengths are in the batch, and some of them end sooner.
TEST_F(CudaGeneration, TextsTogetherAreTextsAlone) {
  for (const GptConfig& config : {tiny_gpt(), tiny_llama()}) {
    Speaker speaker(config, "fp32", device());
    std::vector<Question> questions{{prompt_, best_}, {{7}, best_}, {{2, 6, 5, 3, 5}, best_}};
    const auto first = speaker.generator().generate(questions[1].prompt, 9, best_);
    questions[1].choice.stop = {first[4]};
    const std::int64_t before = speaker.generator().times().replayed;
    const auto together = speaker.generator().generate_together(questions, 9);
    EXPECT_GT(speaker.generator().times().replayed, before);
    for (std::size_t i = 0; i < questions.size(); ++i)
      EXPECT_EQ(together[i],
                speaker.generator().generate(questions[i].prompt, 9, questions[i].choice))
          << i;
  }
}

}  // namespace
}  // namespace choir::test
