#include "kernels/attention_forward.cuh"

namespace choir::cuda {

template void launch_attention_forward<bf16>(const Stream&, const ops::AttentionForward&);

}  // namespace choir::cuda
