#include "kernels/relative_attention/relative_attention.hpp"

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/row_blocks.hpp"

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
