#include "kernels/attention_forward.cuh"

namespace choir::cuda {

template void launch_attention_forward<f16>(const Stream&, const ops::AttentionForward&);

}  // namespace choir::cuda
