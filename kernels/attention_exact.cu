#include "kernels/attention_delta.cuh"
#include "kernels/attention_exact_backward.cuh"

namespace choir::cuda {

template <>
void launch_attention_forward<float>(const Stream& stream, const ops::AttentionForward& args) {
  const ops::AttentionProblem& p = args.problem;
  with_head_width<32, 64, 128>(p.head_width, [&](auto width) {
    launch(stream, "attention_exact_forward", attention_exact_forward_kernel<width()>,
           {attention_blocks(blocks_for(p.queries, kExactEdge), p.heads, p.batch), kExactThreads,
            kExactForwardBytes<width()>},
           attention_args<float>(args));
  });
}

template <>
void launch_attention_backward<float>(const Stream& stream, const ops::AttentionBackward& args) {
  const ops::AttentionProblem& p = args.problem;
  const AttentionArgs<float> a = attention_args<float>(args);
  launch_attention_delta(stream, a, p);
  with_head_width<32, 64, 128>(p.head_width, [&](auto width) {
    launch(stream, "attention_exact_keys", attention_exact_keys_kernel<width()>,
           {attention_blocks(blocks_for(p.keys, kExactEdge), p.kv_heads, p.batch), kExactThreads,
            kExactBackwardBytes<width()>},
           a);
    launch(stream, "attention_exact_queries", attention_exact_queries_kernel<width()>,
           {attention_blocks(blocks_for(p.queries, kExactEdge), p.heads, p.batch), kExactThreads,
            kExactBackwardBytes<width()>},
           a);
  });
}

}  // namespace choir::cuda
