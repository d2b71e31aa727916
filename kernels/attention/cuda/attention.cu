// Dispatch to the cuda kernels, which are compiled in files of their own. Their headers describe
// the algorithms and their speed: attention_forward.cuh, attention_backward_keys.cuh and
// attention_backward_queries.cuh, attention_hopper_*.cuh for sm_90a, and attention_exact.cuh for
// f32.
#include "kernels/attention/cuda/attention_delta.cuh"
#include "kernels/attention/cuda/attention_hopper.cuh"
#include "kernels/attention/cuda/attention_launch.cuh"
#include "kernels/cuda/types.cuh"

namespace choir::cuda {

void attention_forward(const Stream& stream, const ops::AttentionForward& args) {
  with_element(args.problem.dtype, [&](auto t) {
    const auto a = attention_args<decltype(t)>(args);
    if constexpr (sizeof t == 2)
      if (hopper_takes(stream, args.problem, a))
        return launch_attention_hopper_forward(stream, args.problem, a);
    launch_attention_forward(stream, args.problem, a);
  });
}

void attention_backward(const Stream& stream, const ops::AttentionBackward& args) {
  with_element(args.problem.dtype, [&](auto t) {
    const auto a = attention_args<decltype(t)>(args);
    launch_attention_delta(stream, a, args.problem);
    if constexpr (sizeof t == 2)
      if (hopper_takes(stream, args.problem, a))
        return launch_attention_hopper_backward(stream, args.problem, a);
    launch_attention_backward_keys(stream, args.problem, a);
    launch_attention_backward_queries(stream, args.problem, a);
  });
}

}  // namespace choir::cuda
