// Dispatch to the attention kernels on cuda, which are compiled in files of their own, and the
// kernel that merges attention over sets of keys. The headers of attention_forward.cuh and
// attention_backward.cuh, of attention_hopper_*.cuh for sm_90a and of attention_exact.cu for f32
// describe the algorithms and their speed.

#include "kernels/attention/attention.hpp"
#include "kernels/attention/cuda/attention_args.cuh"
#include "kernels/attention/cuda/attention_hopper.cuh"
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/collective.cuh"
#include "kernels/cuda/launch.cuh"

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
    if constexpr (sizeof t == 2)
      if (hopper_takes(stream, args.problem, a))
        return launch_attention_hopper_backward(stream, args.problem, a);
    launch_attention_backward_queries(stream, args.problem, a);  // computes delta for the other
    launch_attention_backward_keys(stream, args.problem, a);
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
  follow_earlier();
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
