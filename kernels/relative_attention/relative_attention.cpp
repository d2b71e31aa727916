// Helpers of relative-position attention: checks and dispatch, the CPU twins, and the fp64
// references.

#include "kernels/relative_attention/relative_attention.hpp"

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/row_blocks.hpp"
#include "kernels/dispatch.hpp"

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

bool relative_backward_is_one(const Stream& stream, const AttentionProblem& p) {
  return stream.device().plans_for() == DeviceKind::cuda && size_of(p.dtype) == 2 && p.biased &&
         !p.causal && p.queries == p.keys && p.queries <= cuda::kMostFramesInOneKernel &&
         p.heads == p.kv_heads && p.head_width <= cuda::kWidestHeadInOneKernel &&
         p.head_width % 8 == 0;
}

void relative_attention_backward(const Stream& stream, const AttentionBackward& args,
                                 const TensorView& d_scores) {
  const AttentionProblem& p = args.problem;
  CHOIR_CHECK(relative_backward_is_one(stream, p) && args.d_bias.empty(),
              "backward of {} frames and heads {} wide in one kernel", p.queries, p.head_width);
  CHOIR_CHECK(d_scores.shape.back() >= 2 * p.queries - 1, "rows of {} scores of {} frames",
              d_scores.shape.back(), p.queries);
  const double width = static_cast<double>(p.head_width), rows = static_cast<double>(p.queries);
  const double heads = static_cast<double>(p.batch * p.heads), bytes = 2;
  check_tensor(d_scores, p.dtype, p.batch * p.heads * p.queries * d_scores.shape.back(),
               "d_scores");
  check_workspace(args.workspace, attention_workspace(stream, p, true));
  stream.count(10 * width * rows * rows * heads,
               bytes * heads * rows * (8 * width + rows) + as_bytes(d_scores));
  if (!on_cuda(stream)) return;
  CHOIR_CHECK(cuda::relative_attention_backward(stream, args, d_scores),
              "an operand of relative attention is not 16-byte aligned");
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

namespace choir::cpu {
namespace {

/// Fills rows of a table with the angles of multiples of `step` positions.
template <class A>
void angles(A* table, std::int64_t rows, std::int64_t step, std::int64_t width) {
  const std::int64_t half = width / 2;
  parallel_ranges(rows, width * 32, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t c = 0; c < half; ++c) {
      const double frequency =
          std::pow(10000.0, -2 * static_cast<double>(c) / static_cast<double>(width));
      for (std::int64_t r = first; r < last; ++r) {
        const double angle = static_cast<double>(r * step) * frequency;
        table[r * width + c] = static_cast<A>(std::sin(angle));
        table[r * width + half + c] = static_cast<A>(std::cos(angle));
      }
    }
  });
}

template <class A>
void tables_of(std::int64_t width, A* tables) {
  angles(tables, kFinePositions, 1, width);
  angles(tables + kFinePositions * width, kCoarsePositions, kFinePositions, width);
}

}  // namespace

void relative_position_tables(std::int64_t width, const TensorView& tables) {
  tables.dtype == DType::f64 ? tables_of(width, static_cast<double*>(tables.data))
                             : tables_of(width, static_cast<float*>(tables.data));
}

template <class T>
void relative_positions(const TensorView& tables, const TensorView& out) {
  using A = Sum<T>;
  const std::int64_t tokens = (out.shape[0] + 1) / 2, width = out.shape.back(), half = width / 2;
  const auto* table = static_cast<const A*>(tables.data);
  T* to = static_cast<T*>(out.data);
  const auto put = [](T& place, A value) {
    if constexpr (std::is_same_v<T, A>)
      place = value;
    else
      place = T(static_cast<float>(value));
  };
  parallel_ranges(tokens, width * 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t p = first; p < last; ++p) {
      const A* fine = table + p % kFinePositions * width;
      const A* coarse = table + (kFinePositions + p / kFinePositions) * width;
      T *before = to + (tokens - 1 - p) * width, *after = to + (tokens - 1 + p) * width;
      for (std::int64_t c = 0; c < half; ++c) {
        const A sine = fine[c] * coarse[half + c] + fine[half + c] * coarse[c];
        const A cosine = fine[half + c] * coarse[half + c] - fine[c] * coarse[c];
        put(after[2 * c], -sine), put(after[2 * c + 1], cosine);
        put(before[2 * c], sine), put(before[2 * c + 1], cosine);
      }
    }
  });
}

template <class T>
void relative_queries(const ops::RelativeQueries& args) {
  const std::int64_t heads = args.content.shape[0], width = args.content.shape[1];
  const std::int64_t rows = args.rows.shape.rows(), row = args.rows.shape.back();
  const T *u = static_cast<const T*>(args.content.data),
          *v = static_cast<const T*>(args.position.data);
  const auto scale = static_cast<Sum<T>>(args.scale);
  parallel_ranges(rows, heads * width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t n = first; n < last; ++n) {
        T* q = static_cast<T*>(args.rows.data) + n * row + h * width;
        T* shifted = static_cast<T*>(args.shifted.data) + (h * rows + n) * width;
        for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
          const Vec<T> x = access.load(q + c);
          access.store(shifted + c, (x + access.load(v + h * width + c)) * scale);
          access.store(q + c, x + access.load(u + h * width + c));
        });
      }
  });
}

std::int64_t relative_queries_workspace(std::int64_t rows, std::int64_t width) {
  return RowBlocks(rows).count * 2 * RowBlocks::stride(width) *
         static_cast<std::int64_t>(sizeof(double));
}

template <class T>
void relative_queries_backward(const ops::RelativeQueriesBackward& args) {
  using A = Sum<T>;
  const std::int64_t heads = args.d_content.shape[0], width = args.d_content.shape[1];
  const std::int64_t rows = args.d_rows.shape.rows(), row = args.d_rows.shape.back();
  const RowBlocks blocks(rows);
  const std::int64_t stride = RowBlocks::stride(heads * width);
  const auto scale = static_cast<A>(args.scale);
  auto* partials = static_cast<A*>(args.workspace.data);
  parallel_ranges(blocks.count, blocks.rows_per_block * heads * width,
                  [&](std::int64_t first_block, std::int64_t last_block) {
                    for (std::int64_t b = first_block; b < last_block; ++b) {
                      A *sums = partials + b * 2 * stride, *others = sums + stride;
                      std::memset(sums, 0, static_cast<std::size_t>(2 * stride) * sizeof(A));
                      for (std::int64_t h = 0; h < heads; ++h)
                        for (std::int64_t n = blocks.first(b); n < blocks.last(b); ++n) {
                          T* d_q = static_cast<T*>(args.d_rows.data) + n * row + h * width;
                          const T* shifted =
                              static_cast<const T*>(args.d_shifted.data) + (h * rows + n) * width;
                          for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
                            A *u = sums + h * width + c, *v = others + h * width + c;
                            const Vec<T> d = access.load(d_q + c),
                                         more = access.load(shifted + c) * scale;
                            access.store(u, access.load(u) + d);
                            access.store(v, access.load(v) + more);
                            access.store(d_q + c, d + more);
                          });
                        }
                    }
                  });
  if (blocks.count == 0) return;
  add_partials(partials, blocks.count, 2 * stride, heads * width,
               static_cast<A*>(args.d_content.data));
  add_partials(partials + stride, blocks.count, 2 * stride, heads * width,
               static_cast<A*>(args.d_position.data));
}

template <class T>
void unshift_scores(const TensorView& d_bias, const TensorView& d_scores) {
  const std::int64_t batch = d_bias.shape[0], heads = d_bias.shape[1], tokens = d_bias.shape[2];
  const std::int64_t width = d_scores.shape.back();
  const auto bytes = [](std::int64_t n) { return static_cast<std::size_t>(n) * sizeof(T); };
  parallel_ranges(heads * batch * tokens, 3 * tokens, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const std::int64_t i = r % tokens, b = r / tokens % batch, h = r / tokens / batch;
      const std::int64_t before = tokens - 1 - i;
      T* to = static_cast<T*>(d_scores.data) + r * width;
      const T* from = static_cast<const T*>(d_bias.data) + ((b * heads + h) * tokens + i) * tokens;
      std::memset(static_cast<void*>(to), 0, bytes(before));
      std::memcpy(static_cast<void*>(to + before), from, bytes(tokens));
      std::memset(static_cast<void*>(to + before + tokens), 0, bytes(width - before - tokens));
    }
  });
}

template <class T>
void mask_scores(const ops::AttentionContext& context, const TensorView& scores) {
  const std::int64_t tokens = scores.shape[1], width = scores.shape[2];
  const T hidden(-std::numeric_limits<Sum<T>>::infinity());
  parallel_ranges(scores.shape[0] * tokens, tokens, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const std::int64_t i = r % tokens;
      const SeenKeys seen = seen_keys(context, i, tokens);
      T* keys = static_cast<T*>(scores.data) + r * width + (tokens - 1 - i);
      std::fill(keys, keys + seen.first, hidden);
      std::fill(keys + seen.end, keys + tokens, hidden);
    }
  });
}

#define CHOIR_INSTANTIATE(T)                                                       \
  template void relative_positions<T>(const TensorView&, const TensorView&);       \
  template void relative_queries<T>(const ops::RelativeQueries&);                  \
  template void relative_queries_backward<T>(const ops::RelativeQueriesBackward&); \
  template void unshift_scores<T>(const TensorView&, const TensorView&);           \
  template void mask_scores<T>(const ops::AttentionContext&, const TensorView&);
CHOIR_INSTANTIATE(double)
CHOIR_INSTANTIATE(float)
CHOIR_INSTANTIATE(bf16)
CHOIR_INSTANTIATE(f16)
#undef CHOIR_INSTANTIATE

}  // namespace choir::cpu

namespace choir::ref {

void relative_positions(const TensorView& out) {
  const std::int64_t tokens = (out.shape[0] + 1) / 2, width = out.shape.back();
  for (std::int64_t k = 0; k < out.shape[0]; ++k)
    for (std::int64_t c = 0; c < width; ++c) {
      const double angle =
          static_cast<double>(tokens - 1 - k) *
          std::pow(10000.0, -static_cast<double>(c / 2 * 2) / static_cast<double>(width));
      out.as<double>()[k * width + c] = c % 2 == 0 ? std::sin(angle) : std::cos(angle);
    }
}

void relative_queries(const ops::RelativeQueries& args) {
  const std::int64_t heads = args.content.shape[0], width = args.content.shape[1];
  const std::int64_t rows = args.rows.shape.rows(), row = args.rows.shape.back();
  for (std::int64_t n = 0; n < rows; ++n)
    for (std::int64_t i = 0; i < heads * width; ++i) {
      double& q = args.rows.as<double>()[n * row + i];
      args.shifted.as<double>()[(i / width * rows + n) * width + i % width] =
          args.scale * (q + args.position.as<double>()[i]);
      q += args.content.as<double>()[i];
    }
}

void relative_queries_backward(const ops::RelativeQueriesBackward& args) {
  const std::int64_t heads = args.d_content.shape[0], width = args.d_content.shape[1];
  const std::int64_t rows = args.d_rows.shape.rows(), row = args.d_rows.shape.back();
  for (std::int64_t i = 0; i < heads * width; ++i)
    for (std::int64_t n = 0; n < rows; ++n) {
      double& d_q = args.d_rows.as<double>()[n * row + i];
      const double more =
          args.scale * args.d_shifted.as<double>()[(i / width * rows + n) * width + i % width];
      args.d_content.as<double>()[i] += d_q;
      args.d_position.as<double>()[i] += more;
      d_q += more;
    }
}

void unshift_scores(const TensorView& d_bias, const TensorView& d_scores) {
  const std::int64_t batch = d_bias.shape[0], heads = d_bias.shape[1], tokens = d_bias.shape[2];
  const std::int64_t width = d_scores.shape.back();
  for (std::int64_t h = 0; h < heads; ++h)
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t i = 0; i < tokens; ++i)
        for (std::int64_t k = 0; k < width; ++k) {
          const std::int64_t j = k + i - (tokens - 1);
          d_scores.as<double>()[((h * batch + b) * tokens + i) * width + k] =
              j < 0 || j >= tokens
                  ? 0
                  : d_bias.as<double>()[((b * heads + h) * tokens + i) * tokens + j];
        }
}

void mask_scores(const ops::AttentionContext& context, const TensorView& scores) {
  const std::int64_t tokens = scores.shape[1], width = scores.shape[2];
  for (std::int64_t e = 0; e < scores.count(); ++e) {
    const std::int64_t i = e / width % tokens, k = e % width;
    const std::int64_t j = k + i - (tokens - 1);
    if (j < 0 || j >= tokens) continue;
    bool seen;
    if (context.chunk > 0) {
      const std::int64_t before = i / context.chunk - j / context.chunk;
      seen = before >= 0 && (context.left < 0 || before <= context.left);
    } else {
      seen = (context.left < 0 || i - j <= context.left) &&
             (context.right < 0 || j - i <= context.right);
    }
    if (!seen) scores.as<double>()[e] = -std::numeric_limits<double>::infinity();
  }
}

}  // namespace choir::ref
