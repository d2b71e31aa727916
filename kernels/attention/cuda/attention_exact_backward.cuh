#pragma once
// The backward half of attention_exact.cuh: a kernel that owns tiles of keys and one that owns
// tiles of queries, as in attention_backward_keys.cuh and attention_backward_queries.cuh.
#include "kernels/attention/cuda/attention_exact.cuh"

namespace choir::cuda {

template <int kWidth>
__global__ void __launch_bounds__(kExactThreads, 1)
    attention_exact_keys_kernel(const AttentionArgs<float> a) {
  constexpr int kShare = kExactShare<kWidth>, kEdge = kExactEdge<kWidth>;
  const int tiles = static_cast<int>(blocks_for(a.keys, kEdge));
  const AttentionPlace place = attention_place(tiles, a.heads / a.group);
  const int key = place.tile * kEdge, rows = a.keys - key;
  const KeyLimit limit = a.limit(place.sample);
  const ExactRows<kWidth> k{dynamic_shared<float>()}, v = k.next(), q = v.next(), d_out = q.next();
  const ExactScores<kWidth> left{d_out.next().data};  // P^T, then dS^T

  float d_k[kShare][kWidth / kExactSide], d_v[kShare][kWidth / kExactSide];
  set_zero(d_k), set_zero(d_v);
  k.load(a.row(a.k, place.sample, key, place.head), a.k.position_stride, limit.keys - key, a.width);
  v.load(a.row(a.v, place.sample, key, place.head), a.v.position_stride, limit.keys - key, a.width);
  int begin = limit.causal && key > limit.offset ? key - limit.offset : 0;
  if (key >= limit.keys) begin = a.queries;
  // Queries beyond the window or the document of the last key see none of these keys.
  const int behind = limit.behind(key + kEdge - 1, a.queries);
  for (int head = place.head * a.group; head < (place.head + 1) * a.group; ++head)
    for (int query = begin / kEdge * kEdge; query < behind; query += kEdge) {
      if (begin >= a.queries) break;
      const std::int64_t statistics = a.statistics(place.sample, head);
      const float* const bias = a.bias ? a.bias_of(place.sample, head) : nullptr;
      __syncthreads();
      q.load(a.row(a.q, place.sample, query, head), a.q.position_stride, a.queries - query,
             a.width);
      d_out.load(a.row(a.d_out, place.sample, query, head), a.d_out.position_stride,
                 a.queries - query, a.width);
      __syncthreads();
      float p[kShare][kShare], d_s[kShare][kShare];
      exact_rows_product(p, k, q);
      exact_rows_product(d_s, v, d_out);
#pragma unroll
      for (int j = 0; j < kShare; ++j) {
        const int t = query + ExactOwner::column(j);
        const float log_sum_exp = t < a.queries ? a.log_sum_exp[statistics + t] : 0.0f;
        const float delta = t < a.queries ? a.delta[statistics + t] : 0.0f;
#pragma unroll
        for (int i = 0; i < kShare; ++i) {
          const float score = exact_score(a, limit, bias, p[i][j], t, key + ExactOwner::row(i));
          p[i][j] = exact_probability(score, log_sum_exp);
          d_s[i][j] = p[i][j] * (d_s[i][j] - delta);
        }
      }
      put_scores(left, p);
      __syncwarp();  // rows belong to half a warp
      add_exact_product(d_v, left, d_out);
      __syncwarp();
      put_scores(left, d_s);
      __syncwarp();
      add_exact_product(d_k, left, q);
    }
  float one[kShare], scale[kShare];
  for (int i = 0; i < kShare; ++i) one[i] = 1, scale[i] = a.scale;
  store_exact(d_k, scale, a.row(a.d_k, place.sample, key, place.head), a.d_k.position_stride, rows,
              a.width);
  store_exact(d_v, one, a.row(a.d_v, place.sample, key, place.head), a.d_v.position_stride, rows,
              a.width);
}

template <int kWidth>
__global__ void __launch_bounds__(kExactThreads, 1)
    attention_exact_queries_kernel(const AttentionArgs<float> a) {
  constexpr int kShare = kExactShare<kWidth>, kEdge = kExactEdge<kWidth>;
  const int tiles = static_cast<int>(blocks_for(a.queries, kEdge));
  const AttentionPlace place = attention_place(tiles, a.heads);
  const int query = (tiles - 1 - place.tile) * kEdge, rows = a.queries - query;
  const KeyLimit limit = a.limit(place.sample);
  const int keys = limit(min(query + kEdge, a.queries) - 1);
  const std::int64_t statistics = a.statistics(place.sample, place.head);
  const float* const bias = a.bias ? a.bias_of(place.sample, place.head) : nullptr;
  float* const d_bias = a.d_bias ? a.d_bias + statistics * a.keys : nullptr;
  const ExactRows<kWidth> q{dynamic_shared<float>()}, d_out = q.next(), k = d_out.next(),
                                                      v = k.next();
  const ExactScores<kWidth> left{v.next().data};

  float d_q[kShare][kWidth / kExactSide];
  set_zero(d_q);
  q.load(a.row(a.q, place.sample, query, place.head), a.q.position_stride, rows, a.width);
  d_out.load(a.row(a.d_out, place.sample, query, place.head), a.d_out.position_stride, rows,
             a.width);
  // A gradient of the bias is written for every key, visible or not.
  const int start = max(limit.first(query), 0) / kEdge * kEdge;
  for (int first = start; first < (d_bias ? a.keys : keys); first += kEdge) {
    const int kv_head = place.head / a.group;
    __syncthreads();
    k.load(a.row(a.k, place.sample, first, kv_head), a.k.position_stride, keys - first, a.width);
    v.load(a.row(a.v, place.sample, first, kv_head), a.v.position_stride, keys - first, a.width);
    __syncthreads();
    float p[kShare][kShare], d_s[kShare][kShare];
    exact_rows_product(p, q, k);
    exact_rows_product(d_s, d_out, v);
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const int t = query + ExactOwner::row(i);
      const float log_sum_exp = t < a.queries ? a.log_sum_exp[statistics + t] : 0.0f;
      const float delta = t < a.queries ? a.delta[statistics + t] : 0.0f;
#pragma unroll
      for (int j = 0; j < kShare; ++j) {
        const int at = first + ExactOwner::column(j);
        const float score = exact_score(a, limit, bias, p[i][j], t, at);
        d_s[i][j] = exact_probability(score, log_sum_exp) * (d_s[i][j] - delta);
        if (d_bias && t < a.queries && at < a.keys)
          d_bias[static_cast<std::int64_t>(t) * a.keys + at] = d_s[i][j];
      }
    }
    put_scores(left, d_s);
    __syncwarp();  // rows belong to half a warp
    add_exact_product(d_q, left, k);
  }
  float scale[kShare];
  for (int i = 0; i < kShare; ++i) scale[i] = a.scale;
  store_exact(d_q, scale, a.row(a.d_q, place.sample, query, place.head), a.d_q.position_stride,
              rows, a.width);
}

}  // namespace choir::cuda
