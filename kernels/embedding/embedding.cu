// The embedding on the GPU, and the sort of ids on which its backward is based. Stable sort of
// 32-bit keys with their original positions, one digit of a few bits after the other from the
// lowest (Knuth, TAOCP 3, 5.2.5). A pass has three kernels: every tile of keys counts its digits;
// the counts of each digit are summed over the tiles; every tile moves its keys behind those of
// smaller digits, of earlier tiles, and of earlier warps and lanes. Only integers are used, and the
// result is deterministic. Floor: 16 bytes per key and pass, which is negligible compared with the
// sorted rows; the launches dominate.

#include "kernels/embedding/embedding.hpp"

#include <algorithm>

#include "kernels/cuda/access.cuh"
#include "kernels/cuda/collective.cuh"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

constexpr int kSortThreads = 256;
constexpr int kSortWarps = kSortThreads / kWarp;
constexpr int kKeysPerLane = static_cast<int>(EmbeddingPlan::kSortTile) / kSortThreads;
constexpr int kMaxDigits = 1 << EmbeddingPlan::kMaxDigitBits;
static_assert(kMaxDigits <= kSortThreads);

/// One pass over keys[i] with positions order[i]. In the first pass the keys are ids minus
/// `first_id` if in [0, limit) (others become `limit`), with positions i.
struct SortPass {
  const std::int32_t* ids;  ///< nullptr after the first pass
  std::int32_t first_id;
  std::uint32_t limit;
  const std::uint32_t *keys, *order;
  std::uint32_t *keys_out, *order_out;
  std::uint32_t *tile_counts, *digit_counts;  ///< [digits, tiles], [digits]
  std::int64_t n;
  int shift, digits;

  __device__ std::uint32_t key(std::int64_t i) const {
    if (ids == nullptr) return keys[i];
    const auto id = static_cast<std::uint32_t>(ids[i] - first_id);
    return id < limit ? id : limit;
  }
  __device__ std::uint32_t digit(std::uint32_t key) const {
    return key >> shift & static_cast<std::uint32_t>(digits - 1);
  }
};

/// Index of the k-th key of this lane; the keys of a warp are neighbours.
__device__ inline std::int64_t sort_index(int k) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  return std::int64_t{blockIdx.x} * EmbeddingPlan::kSortTile + (warp * kKeysPerLane + k) * kWarp +
         lane;
}

/// tile_counts[d, tile] = number of keys of the tile with digit d. Grid: tiles.
__global__ void __launch_bounds__(kSortThreads) count_digits_kernel(SortPass pass) {
  follow_earlier();
  CHOIR_SHARED_ARRAY(std::uint32_t, counts, kMaxDigits);
  const int thread = static_cast<int>(threadIdx.x);
  counts[thread] = 0;
  __syncthreads();
  for (int k = 0; k < kKeysPerLane; ++k)
    if (sort_index(k) < pass.n) atomicAdd(counts + pass.digit(pass.key(sort_index(k))), 1u);
  __syncthreads();
  if (thread < pass.digits)
    pass.tile_counts[std::int64_t{thread} * gridDim.x + blockIdx.x] = counts[thread];
}

/// tile_counts[d, tile] becomes the sum over earlier tiles, digit_counts[d] the sum over all tiles.
/// Grid: digits.
__global__ void __launch_bounds__(kSortThreads)
    sum_tiles_kernel(SortPass pass, std::int64_t tiles) {
  follow_earlier();
  CHOIR_SHARED_ARRAY(std::uint32_t, scratch, kSortWarps);
  std::uint32_t* counts = pass.tile_counts + blockIdx.x * tiles;
  std::uint32_t before = 0;
  for (std::int64_t first = 0; first < tiles; first += kSortThreads) {
    const std::int64_t t = first + threadIdx.x;
    const std::uint32_t count = t < tiles ? counts[t] : 0;
    std::uint32_t all;
    const std::uint32_t earlier = block_exclusive_sum<kSortThreads>(count, all, scratch);
    if (t < tiles) counts[t] = before + earlier;
    before += all;
  }
  if (threadIdx.x == 0) pass.digit_counts[blockIdx.x] = before;
}

/// Moves every key with its position to its index by this digit. Grid: tiles.
__global__ void __launch_bounds__(kSortThreads) move_keys_kernel(SortPass pass) {
  follow_earlier();
  CHOIR_SHARED_ARRAY(std::uint32_t, next, kSortWarps * kMaxDigits);  // index of a warp's next key
  CHOIR_SHARED_ARRAY(std::uint32_t, scratch, kSortWarps);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  std::uint32_t* mine = next + thread / kWarp * kMaxDigits;
  for (int i = thread; i < kSortWarps * kMaxDigits; i += kSortThreads) next[i] = 0;
  __syncthreads();
  std::uint32_t keys[kKeysPerLane];
#pragma unroll
  for (int k = 0; k < kKeysPerLane; ++k) {
    keys[k] = sort_index(k) < pass.n ? pass.key(sort_index(k)) : 0;
    if (sort_index(k) < pass.n) atomicAdd(mine + pass.digit(keys[k]), 1u);
  }
  std::uint32_t all;
  std::uint32_t at = block_exclusive_sum<kSortThreads>(
      thread < pass.digits ? pass.digit_counts[thread] : 0, all, scratch);
  __syncthreads();
  if (thread < pass.digits) {
    at += pass.tile_counts[std::int64_t{thread} * gridDim.x + blockIdx.x];
    for (int w = 0; w < kSortWarps; ++w) {
      const std::uint32_t count = next[w * kMaxDigits + thread];
      next[w * kMaxDigits + thread] = at;
      at += count;
    }
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kKeysPerLane; ++k) {
    const std::int64_t i = sort_index(k);
    const bool valid = i < pass.n;
    const std::uint32_t digit = valid ? pass.digit(keys[k]) : kMaxDigits;  // matches no other
    const unsigned same = __match_any_sync(kAllLanes, digit);
    const unsigned earlier = same & ((1u << lane) - 1);
    const std::uint32_t first = valid ? mine[digit] : 0;
    __syncwarp();
    if (valid && earlier == 0) mine[digit] = first + static_cast<std::uint32_t>(__popc(same));
    __syncwarp();
    if (!valid) continue;
    const std::uint32_t to = first + static_cast<std::uint32_t>(__popc(earlier));
    pass.keys_out[to] = keys[k];
    pass.order_out[to] = pass.ids != nullptr ? static_cast<std::uint32_t>(i) : pass.order[i];
  }
}

// Rows of a table by token id, and sums of rows by token id.
// Forward: teams of up to 32 lanes take one row each, with several rows in flight. Floor per
// element: 2 transfers, 3 with positions (tables come from L2); nothing to compute.
// Backward: the ids are sorted together with their row indices (the stable sort above), so that
// rows of one id are neighbours in ascending order. Teams add segments of kSegment sorted rows, one
// row after the other. An id that is wholly within a segment is added to the table directly; the
// part of an id that ends or begins in the segment is left as the sum of a "place", two per
// segment. The places are again a sorted list, and so on until one segment is left. The order of
// additions depends on the sorted ids, never on the GPU; no two threads write one element of the
// table; an id that fills the batch is spread over as many teams as any other batch. Learned
// positions are sums of rows by their index and use the same kernel with a computed sorted list.
// Floor per element: 1 read (2 with positions), 2 f32 transfers of every table row that occurs,
// 1/16 for places. An id outside the table gives zeros in forward and nothing in backward.

constexpr int kRowThreads = 128;
constexpr int kSegment = static_cast<int>(EmbeddingPlan::kSegment);

/// Grid: rows over x. Threads: columns over x, rows over y. Padding reads `last_position`.
template <class T, bool kPacked>
__global__ void CHOIR_ALONE_ON_BLACKWELL(kRowThreads)
    embedding_kernel(std::int64_t rows, std::int64_t width, std::int64_t table_rows,
                     std::int64_t first_id, const std::int32_t* ids, const T* table,
                     const T* positions, const std::int32_t* further, std::uint32_t last_position,
                     Divisor tokens, bool accumulate, T* out) {
  follow_earlier();
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
  follow_earlier();
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

namespace {

/// Thread layout of a block that shares rows of `items` accesses: columns over x, as many as are
/// useful.
dim3 row_threads(std::int64_t items) {
  unsigned lanes = 1;
  while (lanes < kWarp && lanes < items) lanes *= 2;
  return {lanes, kRowThreads / lanes};
}

void check_rows(std::int64_t rows) {
  CHOIR_CHECK(rows < std::int64_t{1} << 31, "{} rows in one embedding", rows);
}

/// The workspace at an offset, as P.
template <class P>
P* at(const TensorView& workspace, std::int64_t offset) {
  return reinterpret_cast<P*>(static_cast<std::byte*>(workspace.data) + offset);
}

SortedRows sort_rows(const Stream& stream, const EmbeddingPlan& plan, const TensorView& ids,
                     std::int64_t first_id, const TensorView& workspace) {
  SortPass pass{};
  pass.ids = ids.as<std::int32_t>();
  pass.first_id = static_cast<std::int32_t>(first_id);
  pass.limit = static_cast<std::uint32_t>(plan.vocabulary);
  pass.tile_counts = at<std::uint32_t>(workspace, plan.tile_counts);
  pass.digit_counts = at<std::uint32_t>(workspace, plan.digit_counts);
  pass.n = plan.rows;
  pass.digits = static_cast<int>(plan.digits());
  const dim3 tiles(static_cast<unsigned>(plan.sort_tiles()));
  const dim3 digits(static_cast<unsigned>(plan.digits()));
  for (int p = 0; p < plan.passes; ++p) {
    pass.shift = p * plan.digit_bits;
    pass.keys_out = at<std::uint32_t>(workspace, plan.keys[p % 2]);
    pass.order_out = at<std::uint32_t>(workspace, plan.order[p % 2]);
    launch(stream, "count_digits", count_digits_kernel, {tiles, kSortThreads}, pass);
    launch(stream, "sum_tiles", sum_tiles_kernel, {digits, kSortThreads}, pass, plan.sort_tiles());
    launch(stream, "move_keys", move_keys_kernel, {tiles, kSortThreads}, pass);
    pass.ids = nullptr, pass.keys = pass.keys_out, pass.order = pass.order_out;
  }
  return {pass.keys, pass.order, pass.limit};
}

template <class T, class List>
void add_segments(const Stream& stream, const List& list, std::int64_t items, std::int64_t width,
                  const T* values, float* total, const Places& places) {
  with_bool(can_pack<T>(width, values, total), [&](auto packed) {
    constexpr bool kPacked = decltype(packed)::value;
    const std::int64_t columns = blocks_for(width, Access<T, kPacked>::kWide);
    const dim3 threads = row_threads(columns);
    const dim3 blocks(static_cast<unsigned>(blocks_for(EmbeddingPlan::segments(items), threads.y)),
                      static_cast<unsigned>(blocks_for(columns, threads.x)));
    launch(stream, "add_segments", add_segments_kernel<T, List, kPacked>, {blocks, threads}, list,
           items, width, values, total, places);
  });
}

/// Adds all levels.
template <class T, class List>
void add_rows(const Stream& stream, const EmbeddingPlan& plan, const List& list, const T* values,
              float* total, const TensorView& workspace) {
  const auto places = [&](int level) {
    return level == plan.levels ? Places{}
                                : Places{at<std::uint32_t>(workspace, plan.place_keys[level]),
                                         at<std::uint32_t>(workspace, plan.place_order[level]),
                                         at<float>(workspace, plan.sums[level])};
  };
  add_segments(stream, list, plan.rows, plan.width, values, total, places(0));
  for (int level = 0; level < plan.levels; ++level) {
    const Places from = places(level);
    add_segments<float>(stream, SortedRows{from.keys, from.order, list.limit}, plan.places[level],
                        plan.width, from.sums, total, places(level + 1));
  }
}

}  // namespace

void embedding_forward(const Stream& stream, const ops::EmbeddingForward& args) {
  const std::int64_t rows = args.ids.count(), width = args.table.shape.back();
  check_rows(rows);
  if (rows == 0 || width == 0) return;
  with_element(args.table.dtype, [&](auto t) {
    using T = decltype(t);
    const std::int64_t first = ops::table_row(args.first_position, args.position_end);
    const T* positions = args.positions.empty() ? nullptr : args.positions.as<T>() + first * width;
    const std::int32_t* const further = positions ? args.first_position_on_device : nullptr;
    const auto last =
        static_cast<std::uint32_t>(std::min(args.position_end - 1 - first, kMostItems));
    with_bool(can_pack<T>(width, args.table.data, positions, args.out.data), [&](auto packed) {
      constexpr bool kPacked = decltype(packed)::value;
      constexpr std::int64_t kMostBlocks = 16384;
      const dim3 threads = row_threads(blocks_for(width, Access<T, kPacked>::kWide));
      const std::int64_t blocks = blocks_for(rows, 4 * threads.y);
      launch(stream, "embedding", embedding_kernel<T, kPacked>,
             {static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), threads}, rows,
             width, args.table.shape.rows(), args.first_id, args.ids.as<std::int32_t>(),
             args.table.as<T>(), positions, further, last, Divisor(args.tokens), args.accumulate,
             args.out.as<T>());
    });
  });
}

void embedding_backward(const Stream& stream, const ops::EmbeddingBackward& args) {
  const bool table = !args.d_table.empty();
  const EmbeddingPlan plan(args.ids.count(), table ? args.d_table.shape.rows() : 1,
                           args.d_out.shape.back());
  check_rows(plan.rows);
  if (plan.rows == 0 || plan.width == 0) return;
  with_element(args.d_out.dtype, [&](auto t) {
    using T = decltype(t);
    const T* d_out = args.d_out.as<T>();
    if (table)
      add_rows(stream, plan, sort_rows(stream, plan, args.ids, args.first_id, args.workspace),
               d_out, args.d_table.as<float>(), args.workspace);
    const std::int64_t real =
        ops::real_positions(args.first_position, args.tokens, args.position_end);
    if (!args.d_positions.empty() && real > 0)
      add_rows(stream, plan, RowsByPosition(plan.rows, args.tokens, real), d_out,
               args.d_positions.as<float>() + args.first_position * plan.width, args.workspace);
  });
}

}  // namespace choir::cuda
