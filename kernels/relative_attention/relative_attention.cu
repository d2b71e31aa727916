#include "kernels/relative_attention/relative_attention.cuh"

#include <vector>

#include "kernels/column_sums/column_sums.hpp"
#include "kernels/cuda/types.cuh"

namespace choir::cuda {
namespace {

/// One block per row, up to a limit.
dim3 row_blocks(std::int64_t rows) {
  constexpr std::int64_t kMost = 1 << 20;
  return dim3(static_cast<unsigned>(rows < kMost ? rows : kMost));
}

}  // namespace

// The tables are computed on the host and copied, once per run. The host waits for the copy.
void relative_position_tables(const Stream& stream, std::int64_t width, const TensorView& tables) {
  with_element(tables.dtype, [&](auto) {
    std::vector<float> host(static_cast<std::size_t>(tables.count()));
    cpu::relative_position_tables(width, {host.data(), DType::f32, tables.shape});
    stream.copy_from_host(tables.data, host.data(), tables.bytes());
    stream.synchronize();
  });
}

void relative_positions(const Stream& stream, const TensorView& tables, const TensorView& out) {
  const std::int64_t tokens = (out.shape[0] + 1) / 2, half = out.shape.back() / 2;
  with_element(out.dtype, [&](auto t) {
    using T = decltype(t);
    launch(stream, "relative_positions", relative_positions_kernel<T>,
           {elementwise_blocks(tokens * half), kElementwiseThreads}, tokens, static_cast<int>(half),
           tables.as<float>(), out.as<T>());
  });
}

void relative_queries(const Stream& stream, const ops::RelativeQueries& args) {
  if (args.shifted.count() == 0) return;
  CHOIR_CHECK(args.shifted.count() <= kMostItems, "{} elements of queries, at most {}",
              args.shifted.count(), kMostItems);
  const std::int64_t heads = args.content.shape[0], width = args.content.shape[1];
  const std::int64_t row = args.rows.shape.back();
  with_element(args.rows.dtype, [&](auto t) {
    using T = decltype(t);
    RelativeQueriesArguments<T> a{args.rows.as<T>(),       args.content.as<T>(),
                                  args.position.as<T>(),   args.shifted.as<T>(),
                                  args.rows.shape.rows(),  row,
                                  Divisor(heads * width),  Divisor(width),
                                  static_cast<int>(width), static_cast<float>(args.scale)};
    const bool packs =
        can_pack<T>(width, a.rows, a.content, a.position, a.shifted) && can_pack<T>(row);
    with_bool(packs, [&](auto packed) {
      constexpr bool kPacked = decltype(packed)::value;
      constexpr std::int64_t kWide = Access<T, kPacked>::kWide;
      a.per_row = Divisor(heads * width / kWide), a.per_head = Divisor(width / kWide);
      launch(stream, "relative_queries", relative_queries_kernel<T, kPacked>,
             {elementwise_blocks(args.shifted.count() / kWide), kElementwiseThreads}, a);
    });
  });
}

void relative_queries_backward(const Stream& stream, const ops::RelativeQueriesBackward& args) {
  const std::int64_t rows = args.d_rows.shape.rows(), width = args.d_content.count();
  if (rows == 0) return;
  const RelativeQueriesPlan plan(rows, width);
  auto* partials = static_cast<float*>(args.workspace.data);
  with_element(args.d_rows.dtype, [&](auto t) {
    using T = decltype(t);
    launch(
        stream, "relative_queries_backward", relative_queries_backward_kernel<T>,
        {dim3(static_cast<unsigned>(plan.blocks)), kElementwiseThreads},
        RelativeQueriesBackwardArguments<T>{
            args.d_rows.as<T>(), args.d_shifted.as<T>(), partials, rows, args.d_rows.shape.back(),
            plan.rows_per_block, plan.stride, static_cast<int>(args.d_content.shape[0]),
            static_cast<int>(args.d_content.shape[1]), static_cast<float>(args.scale)});
  });
  add_partials(stream, {partials,
                        plan.blocks,
                        2 * plan.stride,
                        plan.stride,
                        width,
                        {args.d_content.as<float>(), args.d_position.as<float>()}});
}

void unshift_scores(const Stream& stream, const TensorView& d_bias, const TensorView& d_scores) {
  if (d_bias.count() == 0) return;
  const std::int64_t rows = d_bias.shape.rows();
  CHOIR_CHECK(rows <= kMostItems, "{} rows of scores, at most {}", rows, kMostItems);
  with_element(d_bias.dtype, [&](auto t) {
    using T = decltype(t);
    const UnshiftArguments<T> a{d_bias.as<T>(),
                                d_scores.as<T>(),
                                d_bias.count(),
                                static_cast<std::uint32_t>(rows),
                                static_cast<int>(d_bias.shape[2]),
                                static_cast<int>(d_scores.shape.back()),
                                Divisor(d_bias.shape[2]),
                                Divisor(d_bias.shape[0]),
                                static_cast<int>(d_bias.shape[1])};
    with_bool(can_pack<T>(a.width, a.d_bias, a.d_scores), [&](auto packed) {
      launch(stream, "unshift_scores", unshift_scores_kernel<T, decltype(packed)::value>,
             {row_blocks(blocks_for(rows, kElementwiseThreads / kWarp)), kElementwiseThreads}, a);
    });
  });
}

void mask_scores(const Stream& stream, const ops::AttentionContext& context,
                 const TensorView& scores) {
  if (scores.count() == 0) return;
  const std::int64_t rows = scores.shape[0] * scores.shape[1];
  with_element(scores.dtype, [&](auto t) {
    using T = decltype(t);
    launch(stream, "mask_scores", mask_scores_kernel<T>, {row_blocks(rows), kElementwiseThreads},
           rows, scores.shape[1], scores.shape[2], context, scores.as<T>());
  });
}

}  // namespace choir::cuda
