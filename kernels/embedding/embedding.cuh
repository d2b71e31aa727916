#pragma once
// Rows of a table by token id, and sums of rows by token id.
// Forward: teams of up to 32 lanes take one row each, with several rows in flight. Floor per
// element: 2 transfers, 3 with positions (tables come from L2); nothing to compute.
// Backward: the ids are sorted together with their row indices (radix_sort.cuh), so that rows of
// one id are neighbours in ascending order. Teams add segments of kSegment sorted rows, one row
// after the other. An id that is wholly within a segment is added to the table directly; the part
// of an id that ends or begins in the segment is left as the sum of a "place", two per segment. The
// places are again a sorted list, and so on until one segment is left. The order of additions
// depends on the sorted ids, never on the GPU; no two threads write one element of the table; an id
// that fills the batch is spread over as many teams as any other batch. Learned positions are sums
// of rows by their index and use the same kernel with a computed sorted list. Floor per element: 1
// read (2 with positions), 2 f32 transfers of every table row that occurs, 1/16 for places.
// An id outside the table gives zeros in forward and nothing in backward.
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/blackwell.cuh"
#include "kernels/embedding/embedding_plan.hpp"

namespace choir::cuda {

constexpr int kRowThreads = 128;
constexpr int kSegment = static_cast<int>(EmbeddingPlan::kSegment);

/// Grid: rows over x. Threads: columns over x, rows over y. Padding reads `last_position`.
template <class T, bool kPacked>
__global__ void CHOIR_ALONE_ON_BLACKWELL(kRowThreads)
    embedding_kernel(std::int64_t rows, std::int64_t width, std::int64_t table_rows,
                     std::int64_t first_id, const std::int32_t* ids, const T* table,
                     const T* positions, const std::int32_t* further, std::uint32_t last_position,
                     Divisor tokens, bool accumulate, T* out) {
  using Wide = Access<T, kPacked>;
  if (further != nullptr) positions += *further * width;
  constexpr int kRows = 4;  // in flight
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.y;
  for (std::int64_t first = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y; first < rows;
       first += kRows * stride) {
    std::int64_t id[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k)
      id[k] = first + k * stride < rows ? ids[first + k * stride] - first_id : std::int64_t{-1};
    for (std::int64_t c = std::int64_t{threadIdx.x} * Wide::kWide; c < width;
         c += std::int64_t{blockDim.x} * Wide::kWide) {
      typename Wide::Raw token[kRows], position[kRows];
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        const std::int64_t r = first + k * stride;
        token[k] = position[k] = typename Wide::Raw{};
        if (id[k] >= 0 && id[k] < table_rows) token[k] = Wide::read(table + id[k] * width + c);
        if (positions != nullptr && r < rows) {
          const std::uint32_t at = tokens.remainder(static_cast<std::uint32_t>(r));
          position[k] =
              Wide::read(positions + (at < last_position ? at : last_position) * width + c);
        }
      }
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        const std::int64_t r = first + k * stride;
        if (r >= rows) break;
        if (positions != nullptr) {
          float x[Wide::kWide], y[Wide::kWide];
          Wide::unpack(token[k], x), Wide::unpack(position[k], y);
#pragma unroll
          for (int i = 0; i < Wide::kWide; ++i) x[i] += y[i];
          token[k] = Wide::pack(x);
        }
        if (accumulate) {
          float x[Wide::kWide], y[Wide::kWide];
          Wide::unpack(token[k], x), Wide::unpack(Wide::read(out + r * width + c), y);
#pragma unroll
          for (int i = 0; i < Wide::kWide; ++i) x[i] += y[i];
          token[k] = Wide::pack(x);
        }
        Wide::write(out + r * width + c, token[k]);
      }
    }
  }
}

/// A sorted list of keys below `limit` (other keys have no row and may be anywhere), each with the
/// row to be added, or -1 for none.
struct SortedRows {
  const std::uint32_t *keys, *order;
  std::uint32_t limit;
  __device__ std::uint32_t key(std::int64_t i) const { return keys[i]; }
  __device__ std::int64_t row(std::int64_t i) const { return static_cast<std::int32_t>(order[i]); }
};

/// The list of n rows by index within their sample: the first `longer` keys have one row more than
/// the `samples` of the others.
struct RowsByPosition {
  std::uint32_t limit;  ///< tokens without padding
  std::uint32_t tokens;
  Divisor samples, samples_and_one;
  std::uint32_t longer;

  RowsByPosition(std::int64_t n, std::int64_t per_sample, std::int64_t real)
      : limit(static_cast<std::uint32_t>(real)),
        tokens(static_cast<std::uint32_t>(per_sample)),
        samples(n < per_sample ? 1 : n / per_sample),
        samples_and_one(n / per_sample + 1),
        longer(static_cast<std::uint32_t>(n % per_sample)) {}
  __device__ std::uint32_t key(std::int64_t i) const {
    const auto item = static_cast<std::uint32_t>(i);
    const std::uint32_t split = longer * samples_and_one.divisor;
    return item < split ? samples_and_one.quotient(item) : longer + samples.quotient(item - split);
  }
  __device__ std::int64_t row(std::int64_t i) const {
    const auto item = static_cast<std::uint32_t>(i);
    const std::uint32_t split = longer * samples_and_one.divisor;
    const std::uint32_t sample =
        item < split ? samples_and_one.remainder(item) : samples.remainder(item - split);
    return std::int64_t{sample} * tokens + key(i);
  }
};

/// Memory for sums of a segment that continue beyond it; nullptrs at the last level.
struct Places {
  std::uint32_t *keys, *order;
  float* sums;  ///< [2 segments, width]
};

/// total[key] += sum of its rows. Grid: segments over x, columns over y. Threads: the reverse.
template <class T, class List, bool kPacked>
__global__ void __launch_bounds__(kRowThreads)
    add_segments_kernel(List list, std::int64_t items, std::int64_t width, const T* values,
                        float* total, Places places) {
  using Wide = Access<T, kPacked>;
  using Sums = Access<float, kPacked>;
  constexpr int kWide = Wide::kWide, kAhead = 8;
  const std::int64_t segment = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  const std::int64_t first = segment * kSegment;
  const std::int64_t c = (std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kWide;
  if (first >= items || c >= width) return;
  const std::int64_t last = first + kSegment < items ? first + kSegment : items;

  std::uint32_t key = list.key(first);
  bool from_before = first > 0 && key < list.limit && list.key(first - 1) == key;
  int place = 0;  // the next of the segment's two places to be written
  float sum[kWide] = {};
  const auto leave = [&](std::uint32_t of, bool with_sum) {
    const std::int64_t at = 2 * segment + place++;
    if (c == 0) places.keys[at] = of, places.order[at] = static_cast<std::uint32_t>(at);
    if (c == 0 && !with_sum) places.order[at] = 0xffffffffu;
    if (!with_sum) return;
#pragma unroll
    for (int i = 0; i < kWide; i += Sums::kWide)
      Sums::store(places.sums + at * width + c + i, sum + i);
  };
  const auto close = [&] {
    if (from_before) {
      leave(key, true);
    } else if (key < list.limit) {
      float* to = total + key * width + c;
#pragma unroll
      for (int i = 0; i < kWide; i += Sums::kWide) {
        float x[Sums::kWide];
        Sums::load(to + i, x);
#pragma unroll
        for (int j = 0; j < Sums::kWide; ++j) x[j] += sum[i + j];
        Sums::store(to + i, x);
      }
    }
    from_before = false;
  };

  for (std::int64_t i = first; i < last; i += kAhead) {
    std::uint32_t keys[kAhead];
    typename Wide::Raw raw[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      keys[k] = i + k < last ? list.key(i + k) : key;
      const std::int64_t row = i + k < last ? list.row(i + k) : -1;
      raw[k] = typename Wide::Raw{};
      if (row >= 0 && keys[k] < list.limit) raw[k] = Wide::read(values + row * width + c);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (i + k >= last) break;
      if (keys[k] != key) {
        close();
        key = keys[k];
#pragma unroll
        for (int j = 0; j < kWide; ++j) sum[j] = 0;
      }
      float x[kWide];
      Wide::unpack(raw[k], x);
#pragma unroll
      for (int j = 0; j < kWide; ++j) sum[j] += x[j];
    }
  }
  const bool goes_on = last < items && key < list.limit && list.key(last) == key;
  if (!goes_on) {
    close();
  } else {
    leave(key, true);
    if (place == 1) leave(key, false);  // an empty place would separate the id's places
  }
  constexpr std::uint32_t kNobody = 0xffffffffu;
  if (places.keys != nullptr)
    while (place < 2) leave(kNobody, false);
}

}  // namespace choir::cuda
