#pragma once
// Flat maps over n elements: packs of 16 bytes in a grid-stride loop, the remaining elements one by
// one. Floor: bytes read and written at memory bandwidth. Blocks of 256 threads, several packs in
// flight per thread, enough blocks to fill the largest GPU several times.
#include "kernels/cuda/vec.cuh"

namespace choir::cuda {

constexpr int kElementwiseThreads = 256;

/// Number of blocks for `items` items of one thread each; a grid-stride loop handles any excess.
inline dim3 elementwise_blocks(std::int64_t items) {
  constexpr std::int64_t kMost = 8192;
  const std::int64_t wanted = blocks_for(items, kElementwiseThreads);
  return dim3(static_cast<unsigned>(wanted < 1 ? 1 : wanted > kMost ? kMost : wanted));
}

__device__ inline std::int64_t global_thread() {
  return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t global_threads() {
  return std::int64_t{gridDim.x} * blockDim.x;
}

/// out[i] = f(a[i], b[i] ...) for inputs of one type. `packed`: all are aligned to 16 bytes (at
/// least). In place is allowed.
template <class Out, class In, class F, class... Ins>
__device__ inline void map_elements(std::int64_t n, bool packed, Out* out, F f, const In* first,
                                    const Ins*... rest) {
  static_assert(sizeof(In) == sizeof(Out), "cast has its own kernel");
  constexpr int kWidth = kPack<In>;
  const std::int64_t packs = packed ? n / kWidth : 0;
  for (std::int64_t p = global_thread(); p < packs; p += global_threads()) {
    const Pack<In> a = load_pack(first + p * kWidth);
    Pack<Out> result;
    if constexpr (sizeof...(Ins) == 0) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) result.x[i] = f(a.x[i]);
    } else {
      const Pack<In> b = load_pack((rest + p * kWidth)...);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) result.x[i] = f(a.x[i], b.x[i]);
    }
    store_pack(out + p * kWidth, result);
  }
  for (std::int64_t i = packs * kWidth + global_thread(); i < n; i += global_threads())
    out[i] = from_float<Out>(f(to_float(first[i]), to_float(rest[i])...));
}

}  // namespace choir::cuda
