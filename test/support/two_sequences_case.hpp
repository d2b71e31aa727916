#pragma once
// Frames through a convolution and tokens through attention, in one pass or in one pass each.
#include <memory>
#include <vector>

#include "src/nn/layers/convolutions.hpp"
#include "src/nn/layers/self_attention.hpp"
#include "test/support/adapter_case.hpp"

namespace choir::test {

class TwoSequences {
 public:
  static constexpr std::int64_t kWidth = 48;
  static constexpr Sequence kFrames{.batch = 3, .tokens = 7}, kTokens{.batch = 2, .tokens = 4};
  struct Result {
    std::vector<double> frames, tokens, d_frames, d_tokens, gradients;
  };

  TwoSequences(Device& device, Mesh& mesh, bool sequence) : rank_(device, mesh, "fp64", sequence) {
    rank_.parameters().begin_bucket("layers");
    convolution_ = std::make_unique<ConvolutionModule>(
        rank_.parameters(), "convolution",
        ConvolutionModule::Options{.width = kWidth, .kernel = 3, .dropout = 0.2});
    attention_ = std::make_unique<SelfAttention>(
        rank_.parameters(), "attention",
        SelfAttention::Options{.width = kWidth, .heads = 12, .kv_heads = 12, .dropout = 0.2});
    rank_.place();
  }

  /// Backward of the frames runs after that of the tokens, which form an inner sequence of their
  /// own.
  Result in_one_pass(bool postponed) {
    Pass& pass = rank_.pass();
    Result result;
    pass.begin(Mode::train, kFrames, 5);
    pass.postpone_weight_gradients(postponed);
    const int tokens = pass.add_sequence(kTokens);
    convolve(result);
    {
      const Pass::On on(pass, tokens);
      attend(result);
    }
    {
      const Pass::On on(pass, tokens);
      attend_backward(result);
    }
    convolve_backward(result);
    if (postponed) pass.run_weight_gradients(0);
    result.gradients = rank_.gradients();
    return result;
  }
  Result in_two_passes() {
    Result result;
    rank_.pass().begin(Mode::train, kTokens, 5);
    attend(result);
    attend_backward(result);
    rank_.pass().begin(Mode::train, kFrames, 5);
    convolve(result);
    convolve_backward(result);
    result.gradients = rank_.gradients();
    return result;
  }

 private:
  Tensor rows(const char* what) {
    Tensor x = rank_.pass().allocate({rank_.pass().share_rows(), kWidth}, what);
    rank_.put(share_of_rows(rank_.pass(), what, kWidth), x);
    return x;
  }
  void convolve(Result& result) {
    result.frames = rows_of_ranks(rank_, convolution_->forward(rank_.pass(), rows("frames")));
  }
  void convolve_backward(Result& result) {
    result.d_frames = rows_of_ranks(rank_, convolution_->backward(rank_.pass(), rows("d_frames")));
  }
  void attend(Result& result) {
    result.tokens = rows_of_ranks(rank_, attention_->forward(rank_.pass(), rows("tokens"), {}));
  }
  void attend_backward(Result& result) {
    result.d_tokens =
        rows_of_ranks(rank_, attention_->backward(rank_.pass(), rows("d_tokens"), {}));
  }

  RankOfContext rank_;
  std::unique_ptr<ConvolutionModule> convolution_;
  std::unique_ptr<SelfAttention> attention_;
};

}  // namespace choir::test
