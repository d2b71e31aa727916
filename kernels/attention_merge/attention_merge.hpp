#pragma once
// Merging of attention over sets of keys. Floor per element: 2 reads and 1 write (the first part: 1
// and 1); two exponentials and a logarithm per row of a head are negligible.
#include "choir/ops/attention_merge.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

namespace cpu {
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
