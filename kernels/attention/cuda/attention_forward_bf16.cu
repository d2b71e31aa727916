#include "kernels/attention/cuda/attention_forward.cuh"

namespace choir::cuda {

template void launch_attention_forward(const Stream&, const ops::AttentionProblem&,
                                       const AttentionArgs<bf16>&);

}  // namespace choir::cuda
