#pragma once
// Attention over several sets of keys, one after another: merges the results of the single sets
// into the result of attention over all of them (log-sum-exp merging, as in ring attention: Liu et
// al. 2023).

#include <cstdint>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir::ops {

/// Per (sample, head, query), with l the accumulated log of the sum of exponentials and p that of
/// the part: l' = log(e^l + e^p), out' = e^(l - l') out + e^(p - l') part. Queries without visible
/// keys in a set have -inf there. The backward pass of each set is attention_backward() with the
/// final out and log_sum_exp.
struct AttentionMerge {
  std::int64_t heads = 0;       ///< H
  std::int64_t queries = 0;     ///< Tq
  TensorView part;              ///< [B * Tq, H * D], of any element type
  TensorView part_log_sum_exp;  ///< [B, H, Tq] f32 (f64 for f64)
  TensorView out;               ///< [B * Tq, H * D] f32 (f64 for f64), overwritten
  TensorView log_sum_exp;       ///< as part_log_sum_exp, overwritten
  bool first = false;           ///< `out` and `log_sum_exp` are not initialised yet
};

void attention_merge(const Stream& stream, const AttentionMerge& args);

}  // namespace choir::ops

namespace choir {

namespace cpu {

// Merging of attention over sets of keys. Floor per element: 2 reads and 1 write (the first part: 1
// and 1); two exponentials and a logarithm per row of a head are negligible.

/// T: the element type of the part.
template <class T>
void attention_merge(const ops::AttentionMerge& args);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void attention_merge(const Stream& stream, const ops::AttentionMerge& args);
}  // namespace cuda

namespace ref {
/// In f64, any dtype.
void attention_merge(const ops::AttentionMerge& args);
}  // namespace ref

}  // namespace choir
