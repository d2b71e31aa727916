// Attention in f32 without tensor cores, forward and backward: every product and sum in f32, and
// expf instead of its approximation, so that the error is that of f32 alone (the tensor cores' tf32
// would keep 10 bits). For comparison and for small models; real training is in 16 bits.
//
// Shapes and rules: kernels/attention/attention.hpp.
// Floor: 2 D (forward) and 7 D (backward) fused multiply-adds per visible pair. An H200 has 67
// TFLOP/s of them, and this kernel reaches perhaps a third: 16 x 16 threads own 4 x 4 elements of a
// 64 x 64 tile of scores, so a step over four inner elements is 8 shared loads of 16 bytes for 64
// multiply-adds, twice what the loads can feed. Heads wider than 64 take tiles of 32 x 32: five of
// 64 are 152 KB, and a block of sm_86 or sm_89 has 99.
// Approach: as in attention_forward.cuh and attention_backward.cuh, with scores passed from one
// product to the next through shared memory; everything is loaded element by element.

#include "kernels/attention/cuda/attention_args.cuh"
#include "kernels/cuda/collective.cuh"

namespace choir::cuda {

constexpr int kExactSide = 16, kExactThreads = kExactSide * kExactSide;
/// Rows and columns of scores per thread, then per block, for heads kWidth wide.
template <int kWidth>
constexpr int kExactShare = kWidth > 128  ? 1
                            : kWidth > 64 ? 2
                                          : 4;
template <int kWidth>
constexpr int kExactEdge = kExactSide* kExactShare<kWidth>;

/// kRows rows in shared memory; the pitch moves neighbouring rows to different banks.
template <int kRows, int kWidth>
struct ExactTile {
  static constexpr int kPitch = kWidth + 4, kElements = kRows * kPitch;
  float* data;

  __device__ float& at(int row, int column) const { return data[row * kPitch + column]; }
  __device__ float4 four(int row, int column) const {
    return *reinterpret_cast<const float4*>(data + row * kPitch + column);
  }
  __device__ ExactTile next() const { return {data + kElements}; }

  /// Loads rows [0, rows) of `from`, with zeros around them.
  __device__ void load(const float* from, std::int64_t stride, int rows, int width) const {
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kWidth; i += kExactThreads) {
      const int row = i / kWidth, column = i % kWidth;
      at(row, column) = row < rows && column < width ? from[row * stride + column] : 0.0f;
    }
  }
};
/// The rows of heads that are kWidth wide.
template <int kWidth>
using ExactRows = ExactTile<kExactEdge<kWidth>, kWidth>;
template <int kWidth>
using ExactScores = ExactTile<kExactEdge<kWidth>, kExactEdge<kWidth>>;

/// The elements owned by a thread: rows row() + 16 i and columns column() + 16 j of a tile.
struct ExactOwner {
  __device__ static int row(int i = 0) {
    return static_cast<int>(threadIdx.x) / kExactSide + kExactSide * i;
  }
  __device__ static int column(int j = 0) {
    return static_cast<int>(threadIdx.x) % kExactSide + kExactSide * j;
  }
};

template <int kShare, int kColumns>
__device__ inline void set_zero(float (&x)[kShare][kColumns]) {
#pragma unroll
  for (int i = 0; i < kShare; ++i)
#pragma unroll
    for (int j = 0; j < kColumns; ++j) x[i][j] = 0;
}

/// sums = A B^T.
template <int kShare, int kRows, int kWidth>
__device__ inline void exact_rows_product(float (&sums)[kShare][kShare],
                                          const ExactTile<kRows, kWidth>& a,
                                          const ExactTile<kRows, kWidth>& b) {
  set_zero(sums);
#pragma unroll 2
  for (int d = 0; d < kWidth; d += 4) {
    float4 right[kShare];
#pragma unroll
    for (int j = 0; j < kShare; ++j) right[j] = b.four(ExactOwner::column(j), d);
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const float4 left = a.four(ExactOwner::row(i), d);
#pragma unroll
      for (int j = 0; j < kShare; ++j)
        sums[i][j] +=
            left.x * right[j].x + left.y * right[j].y + left.z * right[j].z + left.w * right[j].w;
    }
  }
}

/// sums += A B.
template <int kShare, int kColumns, int kRows, int kWidth>
__device__ inline void add_exact_product(float (&sums)[kShare][kColumns],
                                         const ExactTile<kRows, kRows>& a,
                                         const ExactTile<kRows, kWidth>& b) {
#pragma unroll 2
  for (int k = 0; k < kRows; ++k) {
    float left[kShare];
#pragma unroll
    for (int i = 0; i < kShare; ++i) left[i] = a.at(ExactOwner::row(i), k);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const float right = b.at(k, ExactOwner::column(j));
#pragma unroll
      for (int i = 0; i < kShare; ++i) sums[i][j] += left[i] * right;
    }
  }
}

template <int kShare, int kRows>
__device__ inline void put_scores(const ExactTile<kRows, kRows>& tile,
                                  const float (&x)[kShare][kShare]) {
#pragma unroll
  for (int i = 0; i < kShare; ++i)
#pragma unroll
    for (int j = 0; j < kShare; ++j) tile.at(ExactOwner::row(i), ExactOwner::column(j)) = x[i][j];
}

/// Writes rows of sums[i] * factor[i] to `rows` rows of memory.
template <int kShare, int kColumns>
__device__ inline void store_exact(const float (&sums)[kShare][kColumns],
                                   const float (&factor)[kShare], float* to, std::int64_t stride,
                                   int rows, int width) {
#pragma unroll
  for (int i = 0; i < kShare; ++i)
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int row = ExactOwner::row(i), column = ExactOwner::column(j);
      if (row < rows && column < width) to[row * stride + column] = sums[i][j] * factor[i];
    }
}

/// scale * score, capped or with a bias, or -inf where query t does not see key j.
__device__ inline float exact_score(const AttentionArgs<float>& a, const KeyLimit& limit,
                                    const float* bias, float sum, int t, int j) {
  if (t >= a.queries || j >= limit(t) || j < limit.first(t)) return -INFINITY;
  if (a.cap > 0) return a.cap * tanhf(sum * a.raw_uncap);
  return sum * a.scale + (bias ? bias[t * a.bias_query + j] : 0.0f);
}

/// The slope of the soft cap where it gave this score, which is not masked.
__device__ inline float exact_cap_slope(const AttentionArgs<float>& a, float score) {
  if (a.cap == 0 || score == -INFINITY) return 1.0f;
  const float share = score / a.cap;
  return 1.0f - share * share;
}

/// exp(score - log_sum_exp); 0 for masked scores, also in rows without visible keys.
__device__ inline float exact_probability(float score, float log_sum_exp) {
  return score == -INFINITY ? 0.0f : expf(score - log_sum_exp);
}

template <int kWidth>
constexpr std::size_t kExactForwardBytes = sizeof(float) * (3 * ExactRows<kWidth>::kElements +
                                                            ExactScores<kWidth>::kElements);
template <int kWidth>
constexpr std::size_t kExactBackwardBytes = sizeof(float) * (4 * ExactRows<kWidth>::kElements +
                                                             ExactScores<kWidth>::kElements);

template <int kWidth>
__global__ void __launch_bounds__(kExactThreads, 1)
    attention_exact_forward_kernel(const AttentionArgs<float> a) {
  follow_earlier();
  constexpr int kShare = kExactShare<kWidth>, kEdge = kExactEdge<kWidth>;
  const int tiles = static_cast<int>(blocks_for(a.queries, kEdge));
  const AttentionPlace place = attention_place(tiles, a.heads);
  const int query = (tiles - 1 - place.tile) * kEdge, rows = a.queries - query;
  const KeyLimit limit = a.limit(place.sample);
  const int keys = limit(min(query + kEdge, a.queries) - 1);
  const float* const bias = a.bias ? a.bias_of(place.sample, place.head) : nullptr;
  const ExactRows<kWidth> q{dynamic_shared<float>()}, k = q.next(), v = k.next();
  const ExactScores<kWidth> p{v.next().data};

  float out[kShare][kWidth / kExactSide], most[kShare], sum[kShare];
  set_zero(out);
  for (int i = 0; i < kShare; ++i) most[i] = -INFINITY, sum[i] = 0;
  q.load(a.row(a.q, place.sample, query, place.head), a.q.position_stride, rows, a.width);
  for (int first = max(limit.first(query), 0) / kEdge * kEdge; first < keys; first += kEdge) {
    const int kv_head = place.head / a.group;
    __syncthreads();
    k.load(a.row(a.k, place.sample, first, kv_head), a.k.position_stride, keys - first, a.width);
    v.load(a.row(a.v, place.sample, first, kv_head), a.v.position_stride, keys - first, a.width);
    __syncthreads();
    float scores[kShare][kShare];
    exact_rows_product(scores, q, k);
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      float top = most[i];
#pragma unroll
      for (int j = 0; j < kShare; ++j) {
        scores[i][j] = exact_score(a, limit, bias, scores[i][j], query + ExactOwner::row(i),
                                   first + ExactOwner::column(j));
        top = fmaxf(top, scores[i][j]);
      }
      top = warp_reduce<Max, kExactSide>(top);
      const float shrink = exact_probability(most[i], top);
      float total = 0;
#pragma unroll
      for (int j = 0; j < kShare; ++j) total += scores[i][j] = exact_probability(scores[i][j], top);
      most[i] = top;
      sum[i] = sum[i] * shrink + warp_reduce<Sum, kExactSide>(total);
#pragma unroll
      for (int j = 0; j < kWidth / kExactSide; ++j) out[i][j] *= shrink;
    }
    put_scores(p, scores);
    __syncwarp();  // rows belong to half a warp
    add_exact_product(out, p, v);
  }
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    const int t = query + ExactOwner::row(i);
    if (a.log_sum_exp && t < a.queries && ExactOwner::column() == 0)
      a.log_sum_exp[a.statistics(place.sample, place.head) + t] =
          sum[i] == 0 ? -INFINITY : most[i] + logf(sum[i]);
    sum[i] = sum[i] == 0 ? 0.0f : 1.0f / sum[i];
  }
  store_exact(out, sum, a.row(a.out, place.sample, query, place.head), a.out.position_stride, rows,
              a.width);
}

// Backward: a kernel that owns tiles of keys and one that owns tiles of queries, as in
// attention_backward.cuh.

template <int kWidth>
__global__ void __launch_bounds__(kExactThreads, 1)
    attention_exact_keys_kernel(const AttentionArgs<float> a) {
  follow_earlier();
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
          d_s[i][j] = p[i][j] * (d_s[i][j] - delta) * exact_cap_slope(a, score);
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
  follow_earlier();
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
  with_deltas<kEdge, kExactThreads, kWidth, false>(a, place.sample, place.head, query,
                                                   [](int, float) {});
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
        d_s[i][j] =
            exact_probability(score, log_sum_exp) * (d_s[i][j] - delta) * exact_cap_slope(a, score);
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

template <>
void launch_attention_forward(const Stream& stream, const ops::AttentionProblem& p,
                              const AttentionArgs<float>& a) {
  with_head_width<32, 64, 128, 256>(p.head_width, [&](auto width) {
    launch(stream, "attention_exact_forward", attention_exact_forward_kernel<width()>,
           {attention_blocks(blocks_for(p.queries, kExactEdge<width()>), p.heads, p.batch),
            kExactThreads, kExactForwardBytes<width()>},
           a);
  });
}

template <>
void launch_attention_backward_keys(const Stream& stream, const ops::AttentionProblem& p,
                                    const AttentionArgs<float>& a) {
  with_head_width<32, 64, 128, 256>(p.head_width, [&](auto width) {
    launch(stream, "attention_exact_keys", attention_exact_keys_kernel<width()>,
           {attention_blocks(blocks_for(p.keys, kExactEdge<width()>), p.kv_heads, p.batch),
            kExactThreads, kExactBackwardBytes<width()>},
           a);
  });
}

template <>
void launch_attention_backward_queries(const Stream& stream, const ops::AttentionProblem& p,
                                       const AttentionArgs<float>& a) {
  with_head_width<32, 64, 128, 256>(p.head_width, [&](auto width) {
    launch(stream, "attention_exact_queries", attention_exact_queries_kernel<width()>,
           {attention_blocks(blocks_for(p.queries, kExactEdge<width()>), p.heads, p.batch),
            kExactThreads, kExactBackwardBytes<width()>},
           a);
  });
}

}  // namespace choir::cuda
