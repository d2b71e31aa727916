#include "kernels/attention/cuda/attention_hopper_backward.cuh"

namespace choir::cuda {

template void launch_attention_hopper_backward(const Stream&, const ops::AttentionProblem&,
                                               const AttentionArgs<bf16>&);

}  // namespace choir::cuda
