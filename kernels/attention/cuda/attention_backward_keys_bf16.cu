#include "kernels/attention/cuda/attention_backward.cuh"

namespace choir::cuda {

template void launch_attention_backward_keys(const Stream&, const ops::AttentionProblem&,
                                             const AttentionArgs<bf16>&);

}  // namespace choir::cuda
