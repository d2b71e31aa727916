#pragma once
// LayerNorm and RMSNorm over the last dim, fused with the preceding residual addition.
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

enum class Norm { layernorm, rmsnorm };

/// sum = residual + delta; out = norm(sum) * (offset + weight) + bias. N rows of width C.
struct NormForward {
  Norm kind = Norm::layernorm;
  TensorView residual;  ///< [N, C]
  TensorView delta;     ///< [N, C] or empty: then `sum` stays empty and residual is normalised
  TensorView weight;    ///< [C]
  TensorView bias;      ///< [C] or empty (always empty for rmsnorm)
  TensorView sum;       ///< [N, C] written if delta is given; may be residual or delta itself
  TensorView out;       ///< [N, C]
  TensorView mean;      ///< [N] f32 (f64 for f64), layernorm only
  TensorView rstd;      ///< [N] f32 (f64 for f64)
  double eps = 1e-5;
  double offset = 0;  ///< added to the weight in the type of sums, before it multiplies
};

/// d_sum (+)= gradient through the norm; d_weight and d_bias are accumulated.
struct NormBackward {
  Norm kind = Norm::layernorm;
  TensorView d_out;  ///< [N, C]
  TensorView sum;    ///< [N, C] the normalised input, as in forward
  TensorView weight, mean, rstd;
  TensorView d_sum;        ///< [N, C]
  bool accumulate = true;  ///< false: d_sum is overwritten
  TensorView d_weight;     ///< [C] gradient dtype (f32, or f64), +=
  TensorView d_bias;       ///< [C] or empty, +=
  TensorView workspace;    ///< u8, norm_workspace bytes: partial sums of d_weight and d_bias
  double offset = 0;       ///< as in forward
};

std::int64_t norm_workspace(const Stream& stream, std::int64_t rows, std::int64_t width);
void norm_forward(const Stream& stream, const NormForward& args);
/// Deterministic: partial sums over fixed blocks of rows are added in order.
void norm_backward(const Stream& stream, const NormBackward& args);

}  // namespace choir::ops
