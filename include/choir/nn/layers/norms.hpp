#pragma once
// The norms of a block: that of the residual stream, and those of the channels inside the
// convolution module.
#include <cstdint>
#include <memory>
#include <string>

#include "choir/nn/layers/dropout.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/nn/pass.hpp"
#include "choir/ops/norm.hpp"

namespace choir {

/// The stream as a block receives it: (residual, delta), both [N, C]. The contribution of the
/// previous block is still separate, so that addition and norm are one pass over memory. The value
/// is residual + delta; delta may be empty.
struct ResidualStream {
  Tensor residual;
  Tensor delta;
  const Dropout* dropout = nullptr;  ///< not yet applied to delta, if not nullptr
};

/// The sum of the two parts, as a norm would compute it.
Tensor joined(Pass& pass, ResidualStream stream);

/// The norms of a branch f of a block: x + f(norm(x)), x + norm(f(x)), or x + norm'(f(norm(x))).
enum class NormPlace : std::uint8_t { pre, post, both };

class ResidualNorm {
 public:
  struct Options {
    ops::Norm kind = ops::Norm::layernorm;
    bool bias = true;  ///< layernorm only
    double eps = 1e-5;
    /// True if the rows are heads, which differ between ranks of the tensor axis: gradients are
    /// summed.
    bool of_heads = false;
    /// Not 0: a row is this many heads side by side, which the ranks of the tensor axis divide
    /// among them like those of attention; forward and backward are then collective over that axis.
    std::int64_t heads_of_row = 0;
    /// Rows are multiplied by 1 + weight instead of weight (Gemma), so that weights start at 0.
    bool one_plus_weight = false;
  };
  /// Registers `name`.weight [width] (factors of 1) and `name`.bias [width]. `width` is that of the
  /// heads of all ranks.
  ResidualNorm(ParameterSet& parameters, const std::string& name, std::int64_t width,
               const Options& options);

  struct Output {
    Tensor sum;  ///< residual + delta: the outgoing stream
    Tensor normed;
  };
  /// Without `keep_statistics` only the sum is kept, and remake() must precede backward().
  Output forward(Pass& pass, const ResidualStream& stream, bool keep_statistics = true);
  /// Recomputes the `normed` of a forward that kept only its sum, from the top of the saved
  /// tensors; afterwards everything is kept. The bits are the same, because the statistics are
  /// those of the rounded sum.
  Tensor remake(Pass& pass);
  /// Returns d_sum + the gradient through the norm: the gradient of both residual and delta. An
  /// empty d_sum counts as zero; move it in, so that it can be updated in place.
  Tensor backward(Pass& pass, const Tensor& d_normed, Tensor d_sum);
  /// The same, and the gradient of the branch that ends in this norm: on a GPU before its dropout,
  /// with that of its last bias.
  struct Gradients {
    Tensor d_sum;
    BranchGradient d_branch;
  };
  Gradients backward(Pass& pass, const Tensor& d_normed, Tensor d_sum, const BranchEnd& branch);

 private:
  double offset() const { return options_.one_plus_weight ? 1 : 0; }
  bool divided() const { return options_.heads_of_row > 0 && weight_->split.ranks > 1; }
  bool has_mean() const { return options_.kind == ops::Norm::layernorm || divided(); }
  void forward_divided(Pass& pass, const Tensor& x, const Output& out, const Tensor& mean,
                       const Tensor& rstd) const;
  void backward_divided(Pass& pass, ops::NormBackward call) const;

  Options options_;
  std::int64_t width_;  ///< of this rank
  Parameter* weight_;
  Parameter* bias_ = nullptr;
};

/// A norm inside the convolution module, whose channels are divided over the ranks of the tensor
/// axis; weight and bias are divided like the channels.
class ChannelNorm {
 public:
  /// Registers `name`.weight [width] (ones) and `name`.bias [width].
  ChannelNorm(ParameterSet& parameters, const std::string& name, std::int64_t width, double eps);
  virtual ~ChannelNorm() = default;

  struct Statistics {
    Tensor mean, rstd;  ///< [N], or [c]
    Tensor moments;     ///< [ranks, N, 2] if ranks have moments to share; else empty
  };
  /// Statistics of x [N, c]; collective over the tensor axis. Saves nothing.
  virtual Statistics statistics(Pass& pass, const Tensor& x) const = 0;
  /// Normalises x. Local. The tensors of `statistics` are written by the first call, or identically
  /// by every call.
  virtual Tensor forward(Pass& pass, const Tensor& x, const Statistics& statistics) const = 0;
  /// d_x; collective over the tensor axis.
  virtual Tensor backward(Pass& pass, const Tensor& x, const Statistics& statistics,
                          const Tensor& d_out) = 0;

 protected:
  std::int64_t width_;
  double eps_;
  Parameter *weight_, *bias_;
};

/// Mean and variance of every row over the channels of all ranks (kernels/norm/norm.hpp).
class ChannelLayerNorm final : public ChannelNorm {
 public:
  using ChannelNorm::ChannelNorm;
  Statistics statistics(Pass& pass, const Tensor& x) const override;
  Tensor forward(Pass& pass, const Tensor& x, const Statistics& statistics) const override;
  Tensor backward(Pass& pass, const Tensor& x, const Statistics& statistics,
                  const Tensor& d_out) override;
};

/// Batch normalisation of channels. In training, mean and variance of every channel are computed
/// over the valid frames of the micro-batch, all of which are on this rank, so nothing is
/// exchanged. They are stored in the record of the pass (RunningStatistics). Otherwise the running
/// statistics are used, so that the result of an utterance does not depend on others.
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
