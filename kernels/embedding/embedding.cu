#include "kernels/embedding/embedding.cuh"

#include <algorithm>

#include "kernels/cuda/types.cuh"
#include "kernels/embedding/embedding.hpp"
#include "kernels/embedding/radix_sort.cuh"

namespace choir::cuda {
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
