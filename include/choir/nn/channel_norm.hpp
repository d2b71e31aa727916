#pragma once
// The norm inside the convolution module, whose channels the ranks of the tensor axis share; weight
// and bias are divided like the channels.
#include <memory>
#include <string>

#include "choir/nn/parameter_set.hpp"
#include "choir/nn/pass.hpp"

namespace choir {

class ChannelNorm {
 public:
  /// Registers `name`.weight [width] (ones) and `name`.bias [width].
  ChannelNorm(ParameterSet& parameters, const std::string& name, std::int64_t width, double eps);
  virtual ~ChannelNorm() = default;

  struct Statistics {
    Tensor mean, rstd;  ///< [N], or [c]
    Tensor moments;     ///< [ranks, N, 2] where ranks have moments to share; else empty
  };
  /// x [N, c] -> the same; collective over the tensor axis. Saves nothing.
  virtual Statistics statistics(Pass& pass, const Tensor& x) const = 0;
  /// Local; what the statistics say is written by the first call, or by every call alike.
  virtual Tensor forward(Pass& pass, const Tensor& x, const Statistics& statistics) const = 0;
  /// d_x; collective over the tensor axis.
  virtual Tensor backward(Pass& pass, const Tensor& x, const Statistics& statistics,
                          const Tensor& d_out) = 0;

 protected:
  std::int64_t width_;
  double eps_;
  Parameter *weight_, *bias_;
};

/// Mean and variance of every row, of the channels of all ranks (choir/ops/split_norm.hpp).
class ChannelLayerNorm final : public ChannelNorm {
 public:
  using ChannelNorm::ChannelNorm;
  Statistics statistics(Pass& pass, const Tensor& x) const override;
  Tensor forward(Pass& pass, const Tensor& x, const Statistics& statistics) const override;
  Tensor backward(Pass& pass, const Tensor& x, const Statistics& statistics,
                  const Tensor& d_out) override;
};

}  // namespace choir
