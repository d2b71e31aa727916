#pragma once
// Host: launches both halves of attention's backward on sm_90a; delta is computed before them.
#include "kernels/attention/cuda/attention_hopper_backward_keys.cuh"
#include "kernels/attention/cuda/attention_hopper_backward_queries.cuh"

namespace choir::cuda {

template <class T, int kWidth, AttentionPath kPath>
void launch_hopper_backward_of(const Stream& stream, const ops::AttentionProblem& p,
                               const AttentionArgs<T>& a) {
  using Keys = HopperBackwardKeys<T, kWidth>;
  using Queries = HopperBackwardQueries<T, kWidth>;
  CUtensorMap q, k, v, d_out;
  set_boxes(q, a.q, p, p.heads, p.queries, Keys::Tile::kRows);
  set_boxes(d_out, a.d_out, p, p.heads, p.queries, Keys::Tile::kRows);
  set_boxes(k, a.k, p, p.kv_heads, p.keys, Keys::Tile::kRows);
  set_boxes(v, a.v, p, p.kv_heads, p.keys, Keys::Tile::kRows);
  launch_hopper(stream, "attention_hopper_backward_keys",
                attention_hopper_keys_kernel<T, kWidth, kPath>,
                {attention_blocks(blocks_for(p.keys, Keys::kKeys), p.kv_heads, p.batch),
                 kHopperThreads, Keys::kSharedBytes},
                q, k, v, d_out, a);
  launch_hopper(stream, "attention_hopper_backward_queries",
                attention_hopper_queries_kernel<T, kWidth, kPath>,
                {attention_blocks(blocks_for(p.queries, Queries::kQueries), p.heads, p.batch),
                 kHopperThreads, Queries::kSharedBytes},
                q, k, v, d_out, a);
}

template <class T>
void launch_attention_hopper_backward(const Stream& stream, const ops::AttentionProblem& p,
                                      const AttentionArgs<T>& a) {
  const auto of_width = [&](auto width) {
    p.windowed() || p.divided()
        ? launch_hopper_backward_of<T, width(), AttentionPath::biased>(stream, p, a)
        : launch_hopper_backward_of<T, width(), AttentionPath::plain>(stream, p, a);
  };
  if (p.head_width == 64)
    of_width(std::integral_constant<int, 64>{});
  else
    of_width(std::integral_constant<int, 128>{});
}

}  // namespace choir::cuda
