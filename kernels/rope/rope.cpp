#include "choir/ops/rope.hpp"

#include <algorithm>

#include "kernels/dispatch.hpp"
#include "kernels/rope/rope.hpp"

namespace choir::ops {

void rope_table(const Stream& stream, double theta, const TensorView& table) {
  CHOIR_CHECK(table.shape.rank() == 2 && table.shape.back() % 2 == 0, "table is {}",
              to_string(table.shape));
  CHOIR_CHECK(table.dtype == DType::f32 || table.dtype == DType::f64, "table holds {}",
              name_of(table.dtype));
  stream.count(0, as_bytes(table));
  if (on_cuda(stream)) return cuda::rope_table(stream, theta, table);
  if (!computes(stream)) return;
  cpu::rope_table(theta, table);
}

void rope(const Stream& stream, const Rope& args) {
  const std::int64_t rotated = args.heads * args.head_width;
  CHOIR_CHECK(args.x.shape.rank() > 0 && rotated <= args.x.shape.back(),
              "{} heads of {} in rows of {}", args.heads, args.head_width, args.x.shape.back());
  CHOIR_CHECK(args.head_width % 2 == 0 && args.tokens >= 1, "head width {}, {} tokens",
              args.head_width, args.tokens);
  const std::int64_t rows = args.x.shape.rows();
  const std::int64_t tokens = rows < args.tokens ? rows : args.tokens;
  const std::int64_t positions = std::min(args.first_position + tokens, args.position_end);
  CHOIR_CHECK(!args.table.empty() && args.table.shape.back() == args.head_width &&
                  args.table.shape.rows() >= positions && args.first_position >= 0 &&
                  args.position_end >= 1,
              "table {} for positions below {} of width {}", to_string(args.table.shape), positions,
              args.head_width);
  check_tensor(args.table, sum_dtype_of(args.x.dtype), args.table.count(), "table");
  const double n = static_cast<double>(rows) * static_cast<double>(rotated);
  stream.count(3 * n, 2 * n * static_cast<double>(size_of(args.x.dtype)));
  if (on_cuda(stream)) return cuda::rope(stream, args);
  if (!computes(stream)) return;
  with_element(args.x.dtype, [&](auto t) { cpu::rope<decltype(t)>(args); });
}

}  // namespace choir::ops
