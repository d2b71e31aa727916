#pragma once
// AdamW on flat memory: one pass, no temporaries. Bias corrections and the decay factor are
// computed once, in double. The step is (lr / (1 - b1^t)) m / (sqrt(v) / sqrt(1 - b2^t) + eps), the
// decay a factor 1 - lr * decay on w beforehand. Floor: 28 bytes a parameter for f32 (reads w g m
// v, writes w m v), 30 with a bf16 copy; 14 FLOP.
#include "choir/ops/adamw.hpp"

namespace choir {

namespace cpu {
template <class A>
void adamw(const ops::AdamW& args);
}  // namespace cpu

namespace ref {
/// f64; a copy, if wanted, is bf16.
void adamw(const ops::AdamW& args);
}  // namespace ref

}  // namespace choir
