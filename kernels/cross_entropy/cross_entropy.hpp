#pragma once
// Softmax cross-entropy over rows of V logits, loss and gradient in one visit per row. Pass 1 reads
// the row once from memory: blocks that fit L1 give their maximum, then their sum of exponentials;
// the running sum is rescaled when the maximum rises (online softmax, Milakov & Gimelshein 2018).
// Pass 2 reads the row from L2 and replaces it by (softmax - 1{target}) scale. loss = log(sum) -
// (z_target - max), which stays accurate for logits of any size. With a vocabulary divided among
// ranks the passes are two calls with reductions in between. Floor per logit: one read and one
// write; 2 exp = 40 FLOP.
#include "choir/ops/cross_entropy.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

namespace cpu {
template <class T>
void cross_entropy(const ops::CrossEntropy& args);
template <class T>
void cross_entropy_maxima(const ops::ParallelCrossEntropy& args);
template <class T>
void cross_entropy_sums(const ops::ParallelCrossEntropy& args);
template <class T>
void cross_entropy_finish(const ops::ParallelCrossEntropy& args);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void cross_entropy(const Stream& stream, const ops::CrossEntropy& args);
CHOIR_CUDA_KERNEL void cross_entropy_maxima(const Stream& stream,
                                            const ops::ParallelCrossEntropy& args);
CHOIR_CUDA_KERNEL void cross_entropy_sums(const Stream& stream,
                                          const ops::ParallelCrossEntropy& args);
CHOIR_CUDA_KERNEL void cross_entropy_finish(const Stream& stream,
                                            const ops::ParallelCrossEntropy& args);
}  // namespace cuda

namespace ref {
/// f64. A divided vocabulary has no separate reference; it must agree with this one over the joined
/// columns.
void cross_entropy(const ops::CrossEntropy& args);
}  // namespace ref

}  // namespace choir
