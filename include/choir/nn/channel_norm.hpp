#pragma once
// LayerNorm over channels that the ranks of the tensor axis share: that inside the convolution
// module. Mean and variance are of all channels (choir/ops/split_norm.hpp); weight and bias are
// divided like the channels.
#include <string>

#include "choir/nn/parameter_set.hpp"
#include "choir/nn/pass.hpp"

namespace choir {

class ChannelNorm {
 public:
  /// Registers `name`.weight [width] (ones) and `name`.bias [width].
  ChannelNorm(ParameterSet& parameters, const std::string& name, std::int64_t width, double eps);

  struct Statistics {
    Tensor mean, rstd;  ///< [N]
    Tensor moments;     ///< [ranks, N, 2]; empty on one rank
  };
  /// x [N, c] -> the same; collective over the tensor axis. Saves nothing.
  Statistics statistics(Pass& pass, const Tensor& x) const;
  /// Local; what the statistics say is written on one rank, and by the first call.
  Tensor forward(Pass& pass, const Tensor& x, const Statistics& statistics) const;
  /// d_x; collective over the tensor axis.
  Tensor backward(Pass& pass, const Tensor& x, const Statistics& statistics, const Tensor& d_out);

 private:
  std::int64_t width_;
  double eps_;
  Parameter *weight_, *bias_;
};

}  // namespace choir
