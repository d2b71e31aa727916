#pragma once
// Division of the work of CPU twins among threads: no parallel region for tiny tensors, else
// contiguous chunks. A thread first takes the chunks of its own share, whose memory it touched
// last, then chunks that other threads have not started. A thread that waits for a core therefore
// delays at most its current chunk. The assignment depends on timing, so no result may depend on
// it.
#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

namespace choir::cpu {

/// Up to this many elements are processed by the calling thread: a fork costs about as much.
inline constexpr std::int64_t kSerialElements = 16384;
/// Least elements of a chunk, and most chunks of a thread's share.
inline constexpr std::int64_t kPieceElements = 8192, kPiecesOfShare = 4;
/// Flat tensors are divided in groups of this many elements, so that threads never share a cache
/// line.
inline constexpr std::int64_t kFlatGroup = 64;

/// Tasks 0 .. count - 1 in contiguous shares, one per thread.
class TaskShares {
 public:
  TaskShares(std::int64_t count, int threads) : shares_(std::min(threads, kMostShares)) {
    for (int i = 0; i < shares_; ++i) {
      share(i).next.store(count * i / shares_, std::memory_order_relaxed);
      share(i).end = count * (i + 1) / shares_;
    }
  }
  /// Calls run(task) for each task that this thread gets.
  template <class Run>
  void take(int thread, const Run& run) {
    for (int i = 0; i < shares_; ++i) {
      Share& from = share((thread + i) % shares_);
      while (from.next.load(std::memory_order_relaxed) < from.end) {
        const std::int64_t task = from.next.fetch_add(1, std::memory_order_relaxed);
        if (task < from.end) run(task);
      }
    }
  }

 private:
  static constexpr int kMostShares = 64;
  struct alignas(64) Share {
    std::atomic<std::int64_t> next;
    std::int64_t end;
  };
  Share& share(int i) { return all_[static_cast<std::size_t>(i)]; }
  int shares_;
  std::array<Share, kMostShares> all_;
};

/// Calls run(task) for tasks 0 .. count - 1 on the caller's threads.
template <class Run>
inline void parallel_tasks(std::int64_t count, const Run& run) {
  const int threads = omp_in_parallel() ? 1 : omp_get_max_threads();
  if (threads == 1 || count <= 1) {
    for (std::int64_t task = 0; task < count; ++task) run(task);
    return;
  }
  TaskShares shares(count, threads);
#pragma omp parallel num_threads(threads)
  shares.take(omp_get_thread_num(), run);
}

/// Calls body(first, last) on disjoint ranges of [0, items); an item has `item_elements` elements.
template <class Body>
inline void parallel_ranges(std::int64_t items, std::int64_t item_elements, const Body& body) {
  const std::int64_t elements = items * item_elements;
  const std::int64_t threads = omp_get_max_threads();
  if (items <= 1 || elements < kSerialElements || threads == 1 || omp_in_parallel()) {
    if (items > 0) body(std::int64_t{0}, items);
    return;
  }
  const std::int64_t of_share =
      std::clamp(elements / (threads * kPieceElements), std::int64_t{1}, kPiecesOfShare);
  const std::int64_t pieces = std::min(items, threads * of_share);
  parallel_tasks(pieces, [&](std::int64_t piece) {
    body(items * piece / pieces, items * (piece + 1) / pieces);
  });
}

/// Calls body(first, last) on ranges of n elements, each with `cost` times the work of a copy.
template <class Body>
inline void parallel_flat(std::int64_t n, const Body& body, std::int64_t cost = 1) {
  const std::int64_t groups = (n + kFlatGroup - 1) / kFlatGroup;
  parallel_ranges(groups, kFlatGroup * cost, [&](std::int64_t first, std::int64_t last) {
    body(first * kFlatGroup, last * kFlatGroup < n ? last * kFlatGroup : n);
  });
}

}  // namespace choir::cpu
