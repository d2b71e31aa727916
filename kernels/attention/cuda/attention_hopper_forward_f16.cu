#include "kernels/attention/cuda/attention_hopper_forward.cuh"

namespace choir::cuda {

template bool hopper_has_attention<f16>(const ops::AttentionProblem&);
template void launch_attention_hopper_forward(const Stream&, const ops::AttentionProblem&,
                                              const AttentionArgs<f16>&);

}  // namespace choir::cuda
