#include "kernels/attention_backward.cuh"

namespace choir::cuda {

template void launch_attention_backward<bf16>(const Stream&, const ops::AttentionBackward&);

}  // namespace choir::cuda
