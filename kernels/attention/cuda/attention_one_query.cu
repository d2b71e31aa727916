// Attention of one query per sample on the GPU, without a bias: the case of token generation.
// Formulas and rules: kernels/attention/attention.hpp.
// Floor: K and V once; 1,000 keys of 4 K/V heads, 64 wide, are 1 MB in 16 bits: 0.3 us at 3 TB/s,
// beside the 2 us of an empty kernel. So the goal is that few loads wait for one another.
// Approach: a head's keys are split into parts of 1,024, a block each. Its threads form groups as
// wide as a row has packs; every group walks over its own keys with a running softmax (Milakov &
// Gimelshein 2018), with eight rows of K and V in flight. Groups, warps and, in a separate kernel,
// parts are joined in a fixed order that does not depend on the number of keys: missing keys add
// nothing, to the last bit.

#include "kernels/attention/attention.hpp"
#include "kernels/attention/cuda/attention_args.cuh"
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/collective.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

constexpr int kOneQueryThreads = 512, kOneQueryWarps = kOneQueryThreads / kWarp;
constexpr int kOneQueryKeys = static_cast<int>(kOneQueryPart);
constexpr float kLog2E = 1.44269504088896340736f;

/// 2^x with the precision of the elements.
template <class T>
__device__ inline float exponential(float x) {
  if constexpr (sizeof(T) == 2)
    return ptx::exp2_approx(x);
  else
    return exp2f(x);
}

/// Softmax state over some of the keys: the largest score, the sum of 2^(score - most), and kWide
/// features of the weighted values. Without keys: -inf, 0, 0.
template <int kWide>
struct SoftmaxPart {
  float most = -INFINITY, sum = 0, out[kWide] = {};

  /// Raises the maximum to `top` and rescales the sums.
  template <class T>
  __device__ void raise(float top) {
    if (top == most) return;  // also if both are -inf
    const float shrink = exponential<T>(most - top);
    most = top, sum *= shrink;
#pragma unroll
    for (int i = 0; i < kWide; ++i) out[i] *= shrink;
  }
  template <class T>
  __device__ void join(SoftmaxPart other) {
    const float top = fmaxf(most, other.most);
    raise<T>(top), other.raise<T>(top);
    sum += other.sum;
#pragma unroll
    for (int i = 0; i < kWide; ++i) out[i] += other.out[i];
  }
};

/// Floats of a part of a head: weighted values, largest score, sum.
template <int kWidth>
constexpr int kPartFloats = kWidth + 2;

/// Writes feature d of a joined head, and its statistic.
template <class T>
__device__ inline void finish_query(const AttentionArgs<T>& a, int head, int sample, int d,
                                    const SoftmaxPart<1>& all) {
  if (d < a.width)
    a.row(a.out, sample, 0, head)[d] = from_float<T>(all.sum > 0 ? all.out[0] / all.sum : 0.0f);
  if (d == 0 && a.log_sum_exp != nullptr)
    a.log_sum_exp[a.statistics(sample, head)] =
        all.sum > 0 ? all.most * 0.69314718055994530942f + logf(all.sum) : -INFINITY;
}

/// Joins feature d of `count` consecutive parts.
template <class T, int kWidth>
__device__ inline SoftmaxPart<1> joined(const float* parts, int count, int d) {
  SoftmaxPart<1> all;
  for (int p = 0; p < count; ++p, parts += kPartFloats<kWidth>)
    all.join<T>({parts[kWidth], parts[kWidth + 1], {parts[d]}});
  return all;
}

/// Grid: parts x heads x samples; heads at most kWidth wide. `seen`: see AttentionProblem. `parts`
/// is [B, H, parts, kPartFloats], or nullptr if there is a single part.
template <class T, int kWidth>
__global__ void __launch_bounds__(kOneQueryThreads)
    attention_one_query_kernel(AttentionArgs<T> a, const std::int32_t* seen, float* parts) {
  using Wide = Access<T, true>;
  // A lane has one pack of a row, or two, which are half a row apart.
  constexpr int kPacks = kWidth / Wide::kWide > kWarp ? 2 : 1;
  constexpr int kWide = kPacks * Wide::kWide, kLanes = kWidth / kWide, kAhead = 8 / kPacks;
  constexpr int kGroups = kOneQueryThreads / kLanes;
  static_assert(kLanes <= kWarp && kWidth <= kOneQueryThreads);
  CHOIR_SHARED_ARRAY(float, scratch, kOneQueryWarps* kPartFloats<kWidth>);
  const int thread = static_cast<int>(threadIdx.x), group = thread / kLanes;
  const auto feature = [&](int pack) { return (pack * kLanes + thread % kLanes) * Wide::kWide; };
  const int head = static_cast<int>(blockIdx.y), sample = static_cast<int>(blockIdx.z);
  let_next_begin();
  wait_for_earlier();
  if (seen != nullptr) a.keys = *seen + 1;
  const KeyLimit limit = a.limit(sample);
  const int part_begin = static_cast<int>(blockIdx.x) * kOneQueryKeys;
  const int begin = max(limit.first(0), part_begin);
  const int end = min(limit(0), part_begin + kOneQueryKeys);
  float q[kWide] = {};
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
    if (feature(p) < a.width)
      Wide::load(a.row(a.q, sample, 0, head) + feature(p), q + p * Wide::kWide);
#pragma unroll
  for (int i = 0; i < kWide; ++i) q[i] *= a.scale_log2;
  const float inverse_cap = a.raw_uncap / a.scale_log2;  // of scores times log2 e

  SoftmaxPart<kWide> mine;
  for (int first = begin; first < end; first += kAhead * kGroups) {
    typename Wide::Raw k[kAhead][kPacks] = {}, v[kAhead][kPacks] = {};
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int key = first + u * kGroups + group;
      if (key >= end) continue;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (feature(p) >= a.width) continue;
        k[u][p] = Wide::read(a.row(a.k, sample, key, head / a.group) + feature(p));
        v[u][p] = Wide::read(a.row(a.v, sample, key, head / a.group) + feature(p));
      }
    }
    float scores[kAhead], top = mine.most;
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      float x[kWide], dot = 0;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) Wide::unpack(k[u][p], x + p * Wide::kWide);
#pragma unroll
      for (int i = 0; i < kWide; ++i) dot += q[i] * x[i];
      dot = warp_reduce<Sum, kLanes>(dot);
      if (a.cap > 0) dot = a.cap * kLog2E * tanhf(dot * inverse_cap);
      scores[u] = first + u * kGroups + group < end ? dot : -INFINITY;
      top = fmaxf(top, scores[u]);
    }
    mine.template raise<T>(top);
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (scores[u] == -INFINITY) continue;
      const float p = exponential<T>(scores[u] - top);
      float x[kWide];
#pragma unroll
      for (int p = 0; p < kPacks; ++p) Wide::unpack(v[u][p], x + p * Wide::kWide);
      mine.sum += p;
#pragma unroll
      for (int i = 0; i < kWide; ++i) mine.out[i] += p * x[i];
    }
  }
#pragma unroll
  for (int offset = kLanes; offset < kWarp; offset *= 2) {
    SoftmaxPart<kWide> other;
    other.most = __shfl_xor_sync(kAllLanes, mine.most, offset);
    other.sum = __shfl_xor_sync(kAllLanes, mine.sum, offset);
#pragma unroll
    for (int i = 0; i < kWide; ++i) other.out[i] = __shfl_xor_sync(kAllLanes, mine.out[i], offset);
    mine.template join<T>(other);
  }
  if (thread % kWarp < kLanes) {
    float* const of_warp = scratch + thread / kWarp * kPartFloats<kWidth>;
#pragma unroll
    for (int i = 0; i < kWide; ++i)
      of_warp[feature(i / Wide::kWide) + i % Wide::kWide] = mine.out[i];
    if (thread % kLanes == 0) of_warp[kWidth] = mine.most, of_warp[kWidth + 1] = mine.sum;
  }
  __syncthreads();
  if (thread >= kWidth) return;
  const SoftmaxPart<1> all = joined<T, kWidth>(scratch, kOneQueryWarps, thread);
  if (parts == nullptr) return finish_query(a, head, sample, thread, all);
  const std::int64_t place = (std::int64_t{sample} * a.heads + head) * gridDim.x + blockIdx.x;
  float* const to = parts + place * kPartFloats<kWidth>;
  to[thread] = all.out[0];
  if (thread == 0) to[kWidth] = all.most, to[kWidth + 1] = all.sum;
}

/// Grid: heads x samples.
template <class T, int kWidth>
__global__ void __launch_bounds__(kWidth)
    attention_join_kernel(AttentionArgs<T> a, const float* parts, int count) {
  let_next_begin();
  wait_for_earlier();
  const int head = static_cast<int>(blockIdx.x), sample = static_cast<int>(blockIdx.y);
  const std::int64_t place = (std::int64_t{sample} * a.heads + head) * count;
  const int d = static_cast<int>(threadIdx.x);
  finish_query(a, head, sample, d,
               joined<T, kWidth>(parts + place * kPartFloats<kWidth>, count, d));
}

namespace {

template <class T, int kWidth>
void launch_one_query(const Stream& stream, const ops::AttentionProblem& p,
                      const AttentionArgs<T>& a, float* parts) {
  const auto count = static_cast<unsigned>(blocks_for(p.keys, kOneQueryPart));
  const auto heads = static_cast<unsigned>(p.heads), batch = static_cast<unsigned>(p.batch);
  launch_early(stream, "attention_one_query", attention_one_query_kernel<T, kWidth>,
               {dim3(count, heads, batch), kOneQueryThreads}, a, p.seen,
               count > 1 ? parts : nullptr);
  if (count > 1)
    launch_early(stream, "attention_join", attention_join_kernel<T, kWidth>,
                 {dim3(heads, batch), kWidth}, a, parts, static_cast<int>(count));
}

}  // namespace

bool attention_of_one_query(const Stream& stream, const ops::AttentionForward& args) {
  constexpr std::int64_t kMostBlocks = 65535;  // limit of a grid along y and z
  const ops::AttentionProblem& p = args.problem;
  if (!choir::attention_of_one_query(p) || p.heads > kMostBlocks || p.batch > kMostBlocks)
    return false;
  bool done = false;
  with_element(p.dtype, [&](auto t) {
    using T = decltype(t);
    const AttentionArgs<T> a = attention_args<T>(args);
    done = a.aligned;
    if (done)
      with_head_width<32, 64, 128, 256>(p.head_width, [&](auto width) {
        launch_one_query<T, width()>(stream, p, a, static_cast<float*>(args.workspace.data));
      });
  });
  return done;
}

}  // namespace choir::cuda
