#pragma once
// The residual stream and the norm that reads it. A block receives the stream as (residual, delta):
// what the block before it added is still separate, so that addition and norm are one pass over
// memory.
#include <string>

#include "choir/nn/parameter_set.hpp"
#include "choir/nn/pass.hpp"
#include "choir/ops/norm.hpp"

namespace choir {

/// The value is residual + delta; delta may be empty. Both [N, C].
struct ResidualStream {
  Tensor residual;
  Tensor delta;
};

class ResidualNorm {
 public:
  struct Options {
    ops::Norm kind = ops::Norm::layernorm;
    bool bias = true;  ///< layernorm only
    double eps = 1e-5;
  };
  /// Registers `name`.weight [width] (ones) and `name`.bias [width].
  ResidualNorm(ParameterSet& parameters, const std::string& name, std::int64_t width,
               const Options& options);

  struct Output {
    Tensor sum;  ///< residual + delta: the stream from here on
    Tensor normed;
  };
  /// Without `keep_statistics` only the sum is kept, and remake() goes before backward().
  Output forward(Pass& pass, const ResidualStream& stream, bool keep_statistics = true);
  /// The `normed` of a forward that kept its sum alone, on top of what is saved; everything is kept
  /// now. The bits are the same: statistics are those of the rounded sum.
  Tensor remake(Pass& pass);
  /// Returns d_sum + the gradient through the norm: the gradient of both residual and delta. An
  /// empty d_sum counts as zero; move it in, so that it can be updated in place.
  Tensor backward(Pass& pass, const Tensor& d_normed, Tensor d_sum);

 private:
  Options options_;
  std::int64_t width_;
  Parameter* weight_;
  Parameter* bias_ = nullptr;
};

}  // namespace choir
