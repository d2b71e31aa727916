#include "choir/ops/embedding.hpp"

#include <algorithm>

#include "kernels/dispatch.hpp"
#include "kernels/embedding/embedding.hpp"
#include "kernels/embedding/embedding_plan.hpp"

namespace choir::ops {
namespace {

void check_ids(const TensorView& ids, std::int64_t rows_of_table, std::int64_t vocabulary,
               bool spliced) {
  if (ids.count() == 0) return;
  const std::int64_t all = vocabulary > 0 ? vocabulary : rows_of_table;
  const auto range = cpu::id_range(ids);
  CHOIR_CHECK((spliced || range.lowest >= 0) && range.highest < all,
              "token ids from {} to {} for a table of {} rows", range.lowest, range.highest, all);
}

std::int64_t positions_read(std::int64_t rows, std::int64_t tokens) {
  return rows < tokens ? rows : tokens;
}

void check_positions(std::int64_t tokens, std::int64_t first, std::int64_t end) {
  CHOIR_CHECK(tokens >= 1 && first >= 0 && end >= 1, "{} tokens from position {}, real before {}",
              tokens, first, end);
}

}  // namespace

std::int64_t embedding_workspace(const Stream& stream, std::int64_t rows, std::int64_t vocabulary,
                                 std::int64_t width) {
  if (stream.device().plans_for() != DeviceKind::cuda) return 0;
  return EmbeddingPlan(rows, vocabulary, width).bytes;
}

void embedding_forward(const Stream& stream, const EmbeddingForward& args) {
  const DType dtype = args.table.dtype;
  const std::int64_t rows = args.ids.count(), width = args.table.shape.back();
  check_tensor(args.ids, DType::i32, rows, "ids");
  check_tensor(args.table, dtype, args.table.count(), "table");
  check_tensor(args.out, dtype, rows * width, "out");
  check_positions(args.tokens, args.first_position, args.position_end);
  if (!args.positions.empty()) {
    const std::int64_t needed =
        std::min(args.first_position + positions_read(rows, args.tokens), args.position_end);
    check_tensor(args.positions, dtype, args.positions.count(), "positions");
    CHOIR_CHECK(args.positions.shape.back() == width && args.positions.shape.rows() >= needed,
                "positions are {}: {} rows of {} needed", to_string(args.positions.shape), needed,
                width);
  }
  const double terms = (args.positions.empty() ? 1 : 2) + (args.accumulate ? 1 : 0);
  stream.count((terms - 1) * static_cast<double>(rows * width),
               (terms + 1) * as_bytes(args.out) + as_bytes(args.ids));
  if (on_cuda(stream)) return cuda::embedding_forward(stream, args);
  if (!computes(stream)) return;
  CHOIR_CHECK(!args.first_position_on_device,
              "a position in device memory is for the CUDA device only");
  check_ids(args.ids, args.table.shape.rows(), args.vocabulary, args.spliced);
  with_element(dtype, [&](auto t) { cpu::embedding_forward<decltype(t)>(args); });
}

void embedding_backward(const Stream& stream, const EmbeddingBackward& args) {
  const DType dtype = args.d_out.dtype, sums = sum_dtype_of(dtype);
  const std::int64_t rows = args.ids.count(), width = args.d_out.shape.back();
  check_tensor(args.ids, DType::i32, rows, "ids");
  check_tensor(args.d_out, dtype, rows * width, "d_out");
  const bool table = !args.d_table.empty();
  if (table) {
    check_tensor(args.d_table, sums, args.d_table.count(), "d_table");
    CHOIR_CHECK(args.d_table.shape.back() == width, "d_table is {}", to_string(args.d_table.shape));
  }
  check_positions(args.tokens, args.first_position, args.position_end);
  if (!args.d_positions.empty()) {
    check_tensor(args.d_positions, sums, args.d_positions.count(), "d_positions");
    CHOIR_CHECK(args.d_positions.shape.back() == width &&
                    args.d_positions.shape.rows() >=
                        std::min(args.first_position + positions_read(rows, args.tokens),
                                 args.position_end),
                "d_positions is {}", to_string(args.d_positions.shape));
  }
  check_workspace(args.workspace,
                  embedding_workspace(stream, rows, table ? args.d_table.shape.rows() : 1, width));
  const double n = static_cast<double>(rows * width);
  const double tables = (table ? 1 : 0) + (args.d_positions.empty() ? 0 : 1);
  stream.count(tables * n,
               as_bytes(args.d_out) + 2 * tables * n * static_cast<double>(size_of(sums)));
  if (on_cuda(stream)) return cuda::embedding_backward(stream, args);
  if (!computes(stream)) return;
  if (table) check_ids(args.ids, args.d_table.shape.rows(), args.vocabulary, args.spliced);
  with_element(dtype, [&](auto t) { cpu::embedding_backward<decltype(t)>(args); });
}

}  // namespace choir::ops
