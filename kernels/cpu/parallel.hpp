#pragma once
// How CPU twins share work among threads: contiguous ranges, and no parallel region for tiny
// tensors.
#include <omp.h>

#include <cstdint>

namespace choir::cpu {

/// Fewer elements than this are done by the calling thread: a fork costs about as much.
inline constexpr std::int64_t kSerialElements = 16384;
/// Flat tensors are shared in groups of this many elements, so that threads never share a cache
/// line.
inline constexpr std::int64_t kFlatGroup = 64;

/// body(first, last) on disjoint ranges of [0, items); an item stands for `item_elements` elements.
template <class Body>
inline void parallel_ranges(std::int64_t items, std::int64_t item_elements, const Body& body) {
  if (items <= 1 || items * item_elements < kSerialElements || omp_in_parallel()) {
    if (items > 0) body(std::int64_t{0}, items);
    return;
  }
#pragma omp parallel
  {
    const std::int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
    const std::int64_t first = items * me / threads, last = items * (me + 1) / threads;
    if (first < last) body(first, last);
  }
}

/// body(first, last) on ranges of n elements, `cost` times as much work each as a copy.
template <class Body>
inline void parallel_flat(std::int64_t n, const Body& body, std::int64_t cost = 1) {
  const std::int64_t groups = (n + kFlatGroup - 1) / kFlatGroup;
  parallel_ranges(groups, kFlatGroup * cost, [&](std::int64_t first, std::int64_t last) {
    body(first * kFlatGroup, last * kFlatGroup < n ? last * kFlatGroup : n);
  });
}

}  // namespace choir::cpu
