// The kernels stand in attention_forward.cuh (the header comment there tells the story),
// attention_backward.cuh and, for f32, attention_exact.cuh; each is compiled in files of its own.
#include "kernels/attention_launch.cuh"
#include "kernels/types.cuh"

namespace choir::cuda {

void attention_forward(const Stream& stream, const ops::AttentionForward& args) {
  with_element(args.problem.dtype,
               [&](auto t) { launch_attention_forward<decltype(t)>(stream, args); });
}

void attention_backward(const Stream& stream, const ops::AttentionBackward& args) {
  with_element(args.problem.dtype,
               [&](auto t) { launch_attention_backward<decltype(t)>(stream, args); });
}

}  // namespace choir::cuda
