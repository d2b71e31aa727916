#pragma once
// Batch normalisation of channels: in training mean and variance of every channel are over the
// frames of the micro-batch that count, which this rank has all of; nothing is exchanged. They are
// recorded in the place of the pass (choir/nn/running_statistics.hpp). Otherwise the running
// statistics are used, and the result of an utterance depends on no other.
#include "choir/nn/channel_norm.hpp"

namespace choir {

class ChannelBatchNorm final : public ChannelNorm {
 public:
  ChannelBatchNorm(ParameterSet& parameters, const std::string& name, std::int64_t width,
                   double eps);
  Statistics statistics(Pass& pass, const Tensor& x) const override;
  Tensor forward(Pass& pass, const Tensor& x, const Statistics& statistics) const override;
  Tensor backward(Pass& pass, const Tensor& x, const Statistics& statistics,
                  const Tensor& d_out) override;

 private:
  const RunningStatistics* running_;
};

}  // namespace choir
