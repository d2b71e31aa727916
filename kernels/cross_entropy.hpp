#pragma once
// Softmax cross-entropy over rows of V logits, loss and gradient in one visit per row.
// Pass 1 reads the row once from memory: blocks that fit L1 give their maximum, then their sum of
// exponentials; the running sum is rescaled when the maximum rises (online softmax, Milakov &
// Gimelshein 2018). Pass 2 finds the row in L2 and writes (softmax - 1{target}) scale over it.
// loss = log(sum) - (z_target - max), which keeps its accuracy for logits of any size.
// Floor per logit: one read and one write; 2 exp = 40 FLOP.
#include "choir/ops/cross_entropy.hpp"

namespace choir {

namespace cpu {
template <class T>
void cross_entropy(const ops::CrossEntropy& args);
}  // namespace cpu

namespace ref {
/// f64.
void cross_entropy(const ops::CrossEntropy& args);
}  // namespace ref

}  // namespace choir
