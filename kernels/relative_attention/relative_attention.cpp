#include "choir/ops/relative_attention.hpp"

#include "kernels/dispatch.hpp"
#include "kernels/relative_attention/relative_attention.hpp"

namespace choir::ops {
namespace {

double elements(const TensorView& x) {
  return static_cast<double>(x.count());
}

/// Checks the rows of q and the tensors beside them.
void check_rows(const TensorView& rows, const TensorView& heads, const TensorView& shifted) {
  const std::int64_t width = heads.shape.count();
  check_tensor(rows, rows.dtype, rows.count(), "rows");
  CHOIR_CHECK(heads.shape.rank() == 2 && rows.shape.back() >= width, "heads {} in rows {}",
              to_string(heads.shape), to_string(rows.shape));
  check_tensor(shifted, rows.dtype, rows.shape.rows() * width, "shifted");
}

}  // namespace

std::int64_t relative_position_table_size(std::int64_t width) {
  CHOIR_CHECK(width > 0 && width % 2 == 0, "positions of width {}", width);
  return (kFinePositions + kCoarsePositions) * width;
}

void make_relative_position_tables(const Stream& stream, std::int64_t width,
                                   const TensorView& tables) {
  check_tensor(tables, tables.dtype, relative_position_table_size(width), "tables");
  if (on_cuda(stream)) return cuda::relative_position_tables(stream, width, tables);
  if (computes(stream)) cpu::relative_position_tables(width, tables);
}

void relative_positions(const Stream& stream, const TensorView& tables, const TensorView& out) {
  const std::int64_t tokens = (out.shape[0] + 1) / 2;
  check_tensor(out, out.dtype, (2 * tokens - 1) * out.shape.back(), "out");
  check_tensor(tables, sum_dtype_of(out.dtype), relative_position_table_size(out.shape.back()),
               "tables");
  CHOIR_CHECK(tokens <= kMostRelativeFrames, "{} frames: relative positions reach {}", tokens,
              kMostRelativeFrames);
  stream.count(2 * elements(out), as_bytes(out));
  if (on_cuda(stream)) return cuda::relative_positions(stream, tables, out);
  if (!computes(stream)) return;
  with_element(out.dtype, [&](auto t) { cpu::relative_positions<decltype(t)>(tables, out); });
}

void relative_queries(const Stream& stream, const RelativeQueries& args) {
  check_rows(args.rows, args.content, args.shifted);
  check_tensor(args.content, args.rows.dtype, args.content.count(), "content");
  check_tensor(args.position, args.rows.dtype, args.content.count(), "position");
  stream.count(3 * elements(args.shifted), 3 * as_bytes(args.shifted));
  if (on_cuda(stream)) return cuda::relative_queries(stream, args);
  if (!computes(stream)) return;
  with_element(args.rows.dtype, [&](auto t) { cpu::relative_queries<decltype(t)>(args); });
}

std::int64_t relative_queries_workspace(const Stream& stream, std::int64_t rows,
                                        std::int64_t width) {
  if (stream.device().plans_for() == DeviceKind::cuda)
    return cuda::RelativeQueriesPlan(rows, width).workspace_bytes();
  return cpu::relative_queries_workspace(rows, width);
}

void relative_queries_backward(const Stream& stream, const RelativeQueriesBackward& args) {
  check_rows(args.d_rows, args.d_content, args.d_shifted);
  const std::int64_t width = args.d_content.count();
  check_tensor(args.d_content, sum_dtype_of(args.d_rows.dtype), width, "d_content");
  check_tensor(args.d_position, sum_dtype_of(args.d_rows.dtype), width, "d_position");
  check_workspace(args.workspace,
                  relative_queries_workspace(stream, args.d_rows.shape.rows(), width));
  stream.count(4 * elements(args.d_shifted), 3 * as_bytes(args.d_shifted));
  if (on_cuda(stream)) return cuda::relative_queries_backward(stream, args);
  if (!computes(stream)) return;
  with_element(args.d_rows.dtype,
               [&](auto t) { cpu::relative_queries_backward<decltype(t)>(args); });
}

void unshift_scores(const Stream& stream, const TensorView& d_bias, const TensorView& d_scores) {
  const std::int64_t tokens = d_bias.shape.back();
  CHOIR_CHECK(d_bias.shape.rank() == 4 && d_bias.shape[2] == tokens, "d_bias {}",
              to_string(d_bias.shape));
  check_tensor(d_bias, d_bias.dtype, d_bias.count(), "d_bias");
  const std::int64_t width = d_scores.shape.back();
  CHOIR_CHECK(width >= 2 * tokens - 1, "rows of {} scores of {} frames", width, tokens);
  check_tensor(d_scores, d_bias.dtype, d_bias.shape.rows() * width, "d_scores");
  stream.count(0, as_bytes(d_bias) + as_bytes(d_scores));
  if (on_cuda(stream)) return cuda::unshift_scores(stream, d_bias, d_scores);
  if (!computes(stream)) return;
  with_element(d_bias.dtype, [&](auto t) { cpu::unshift_scores<decltype(t)>(d_bias, d_scores); });
}

void mask_scores(const Stream& stream, const AttentionContext& context, const TensorView& scores) {
  CHOIR_CHECK(context.left >= -1 && context.right >= -1 && context.chunk >= 0,
              "context {}, {} in chunks of {}", context.left, context.right, context.chunk);
  CHOIR_CHECK(scores.shape.rank() == 3 && scores.shape[2] >= 2 * scores.shape[1] - 1, "scores {}",
              to_string(scores.shape));
  check_tensor(scores, scores.dtype, scores.count(), "scores");
  if (context.all()) return;
  stream.count(0, as_bytes(scores) / 2);
  if (on_cuda(stream)) return cuda::mask_scores(stream, context, scores);
  if (!computes(stream)) return;
  with_element(scores.dtype, [&](auto t) { cpu::mask_scores<decltype(t)>(context, scores); });
}

}  // namespace choir::ops
