#pragma once
// PLACEHOLDER
#include "kernels/attention_backward_keys.cuh"
#include "kernels/attention_backward_queries.cuh"
#include "kernels/attention_delta.cuh"
#include "kernels/attention_launch.cuh"

namespace choir::cuda {

template <class T>
void launch_attention_backward(const Stream& stream, const ops::AttentionBackward& args) {
  const ops::AttentionProblem& p = args.problem;
  const AttentionArgs<T> a = attention_args<T>(args);
  launch_attention_delta(stream, a, p);
  with_head_width<32, 64, 96, 128>(p.head_width, [&](auto width) {
    using Keys = BackwardKeysTiles<width()>;
    launch(stream, "attention_backward_keys", attention_backward_keys_kernel<T, width()>,
           {attention_blocks(blocks_for(p.keys, Keys::kKeys), p.kv_heads, p.batch),
            kAttentionThreads, Keys::kSharedBytes},
           a);
    using Queries = BackwardQueriesTiles<width()>;
    launch(stream, "attention_backward_queries", attention_backward_queries_kernel<T, width()>,
           {attention_blocks(blocks_for(p.queries, Queries::kQueries), p.heads, p.batch),
            kAttentionThreads, Queries::kSharedBytes},
           a);
  });
}

}  // namespace choir::cuda
