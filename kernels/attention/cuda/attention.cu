// Dispatch to the attention kernels on cuda, which are compiled in files of their own, and the
// kernel of delta. The headers of attention_forward.cuh and attention_backward.cuh, of
// attention_hopper_*.cuh for sm_90a and of attention_exact.cu for f32 describe the algorithms and
// their speed.
//
// delta [B, H, Tq] = sum over D of d_out * out, which both halves of attention's backward subtract
// from dP (it is the row's sum of P * dP). Floor: both tensors once, with negligible arithmetic.
// Eight lanes read a row; neighbouring rows are adjacent in memory.

#include "kernels/attention/attention.hpp"
#include "kernels/attention/cuda/attention_args.cuh"
#include "kernels/attention/cuda/attention_hopper.cuh"
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/collective.cuh"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

constexpr int kDeltaThreads = 256, kDeltaLanes = 8, kDeltaRows = kDeltaThreads / kDeltaLanes;

template <class T>
__global__ void __launch_bounds__(kDeltaThreads)
    attention_delta_kernel(std::int64_t rows, const AttentionArgs<T> a) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kDeltaLanes;
  const std::int64_t at = std::int64_t{blockIdx.x} * kDeltaRows + thread / kDeltaLanes;
  const bool exists = at < rows;
  const std::int64_t row = exists ? at : 0;  // [B, Tq, H]
  const int head = static_cast<int>(row % a.heads);
  const int t = static_cast<int>(row / a.heads % a.queries);
  const int sample = static_cast<int>(row / a.heads / a.queries);
  const T* const x = a.row(a.d_out, sample, t, head);
  const T* const y = a.row(a.out, sample, t, head);
  float sum = 0;
  for (int d = lane * kPack<T>; d < a.width; d += kDeltaLanes * kPack<T>) {
    if (a.aligned) {
      const Pack<T> left = load_pack(x + d), right = load_pack(y + d);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) sum += left.x[i] * right.x[i];
    } else {
      for (int i = d; i < d + kPack<T> && i < a.width; ++i) sum += to_float(x[i]) * to_float(y[i]);
    }
  }
  sum = warp_reduce<Sum, kDeltaLanes>(sum);
  if (exists && lane == 0) a.delta[a.statistics(sample, head) + t] = sum;
}

template <class T>
void launch_attention_delta(const Stream& stream, const AttentionArgs<T>& a,
                            const ops::AttentionProblem& p) {
  const std::int64_t rows = p.batch * p.queries * p.heads;
  launch(stream, "attention_delta", attention_delta_kernel<T>,
         {attention_blocks(blocks_for(rows, kDeltaRows), 1, 1), kDeltaThreads}, rows, a);
}

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

namespace {

// Kernel for merging of attention over sets of keys. A warp handles a row of a head: every lane
// computes the two weights, one writes their sum.

constexpr int kMergeWarps = 4, kMergeThreads = kMergeWarps * kWarp;

template <class T>
__global__ void __launch_bounds__(kMergeThreads)
    attention_merge_kernel(std::int64_t rows, int heads, int queries, int width, bool first,
                           const T* part, const float* part_lse, float* out, float* lse) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t warps = global_threads() / kWarp;
  for (std::int64_t i = global_thread() / kWarp; i < rows * heads; i += warps) {
    const std::int64_t row = i / heads, head = i % heads;
    const std::int64_t at = (row / queries * heads + head) * queries + row % queries;
    const float before = first ? -INFINITY : lse[at], more = part_lse[at];
    const float most = before > more ? before : more;
    const float old = before == -INFINITY ? 0.0f : expf(before - most);
    const float added = more == -INFINITY ? 0.0f : expf(more - most);
    const float sum = old + added, inverse = sum > 0 ? 1 / sum : 0.0f;
    for (int d = lane; d < width; d += kWarp) {
      const float kept = old > 0 ? old * inverse * out[i * width + d] : 0.0f;
      out[i * width + d] = kept + added * inverse * to_float(part[i * width + d]);
    }
    __syncwarp();  // all lanes have read the value that is overwritten now
    if (lane == 0) lse[at] = sum > 0 ? most + logf(sum) : -INFINITY;
  }
}

}  // namespace

void attention_merge(const Stream& stream, const ops::AttentionMerge& a) {
  const std::int64_t rows = a.part.shape.rows();
  if (a.part.count() == 0) return;
  with_element(a.part.dtype, [&](auto t) {
    using T = decltype(t);
    launch(stream, "attention_merge", attention_merge_kernel<T>,
           {elementwise_blocks(rows * a.heads * kMergeThreads / kMergeWarps), kMergeThreads}, rows,
           static_cast<int>(a.heads), static_cast<int>(a.queries),
           static_cast<int>(a.part.shape.back() / a.heads), a.first, a.part.as<T>(),
           a.part_log_sum_exp.as<float>(), a.out.as<float>(), a.log_sum_exp.as<float>());
  });
}

}  // namespace choir::cuda
