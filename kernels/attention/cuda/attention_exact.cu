#include "kernels/attention/cuda/attention_exact_backward.cuh"
#include "kernels/attention/cuda/attention_launch.cuh"

namespace choir::cuda {

template <>
void launch_attention_forward(const Stream& stream, const ops::AttentionProblem& p,
                              const AttentionArgs<float>& a) {
  with_head_width<32, 64, 128>(p.head_width, [&](auto width) {
    launch(stream, "attention_exact_forward", attention_exact_forward_kernel<width()>,
           {attention_blocks(blocks_for(p.queries, kExactEdge<width()>), p.heads, p.batch),
            kExactThreads, kExactForwardBytes<width()>},
           a);
  });
}

template <>
void launch_attention_backward_keys(const Stream& stream, const ops::AttentionProblem& p,
                                    const AttentionArgs<float>& a) {
  with_head_width<32, 64, 128>(p.head_width, [&](auto width) {
    launch(stream, "attention_exact_keys", attention_exact_keys_kernel<width()>,
           {attention_blocks(blocks_for(p.keys, kExactEdge<width()>), p.kv_heads, p.batch),
            kExactThreads, kExactBackwardBytes<width()>},
           a);
  });
}

template <>
void launch_attention_backward_queries(const Stream& stream, const ops::AttentionProblem& p,
                                       const AttentionArgs<float>& a) {
  with_head_width<32, 64, 128>(p.head_width, [&](auto width) {
    launch(stream, "attention_exact_queries", attention_exact_queries_kernel<width()>,
           {attention_blocks(blocks_for(p.queries, kExactEdge<width()>), p.heads, p.batch),
            kExactThreads, kExactBackwardBytes<width()>},
           a);
  });
}

}  // namespace choir::cuda
