#include <cmath>
#include <cstring>

#include "kernels/batch_norm/batch_norm.hpp"
#include "kernels/cpu/frames.hpp"
#include "kernels/cpu/row_blocks.hpp"

namespace choir::cpu {
namespace {

/// Calls body(first, last) for the ranges of unmasked rows within [first, last).
template <class Body>
void for_counted(const std::int32_t* lengths, std::int64_t tokens, std::int64_t first,
                 std::int64_t last, const Body& body) {
  if (lengths == nullptr) return body(first, last);
  for (std::int64_t r = first; r < last;) {
    const std::int64_t start = r / tokens * tokens;
    const std::int64_t end = start + frames_of(lengths, r / tokens, tokens);
    if (r < end) body(r, end < last ? end : last);
    r = start + tokens;
  }
}

/// body(first, last) writes the unmasked rows of y; the others are set to zero.
template <class T, class Body>
void map_rows(T* y, const std::int32_t* lengths, std::int64_t tokens, std::int64_t rows,
              std::int64_t width, const Body& body) {
  parallel_ranges(rows, width * 2, [&](std::int64_t first, std::int64_t last) {
    const auto clear = [&](std::int64_t from, std::int64_t to) {
      std::memset(static_cast<void*>(y + from * width), 0,
                  static_cast<std::size_t>((to - from) * width) * sizeof(T));
    };
    std::int64_t done = first;
    for_counted(lengths, tokens, first, last, [&](std::int64_t from, std::int64_t to) {
      clear(done, from);
      for (std::int64_t r = from; r < to; ++r) body(r);
      done = to;
    });
    clear(done, last);
  });
}

/// Sums the differences from the first unmasked row, and their squares; then computes the mean and
/// the sum of squares around it.
template <class T>
void block_moments(const T* x, const ops::BatchNorm& args, std::int64_t first, std::int64_t last,
                   Sum<T>* mean, Sum<T>* squares) {
  using V = Vec<T>;
  const std::int64_t width = args.x.shape.back();
  const T* shift = nullptr;
  std::int64_t n = 0;
  for_counted(args.lengths, args.tokens, first, last, [&](std::int64_t from, std::int64_t to) {
    if (shift == nullptr) shift = x + from * width;
    n += to - from;
    for (std::int64_t r = from; r < to; ++r)
      for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
        const V d = access.load(x + r * width + c) - access.load(shift + c);
        access.store(mean + c, access.load(mean + c) + d);
        access.store(squares + c, access.load(squares + c) + d * d);
      });
  });
  if (n == 0) return;
  const auto over_n = 1 / static_cast<Sum<T>>(n);
  for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
    const V s = access.load(mean + c), m = s * over_n, q = access.load(squares + c) - s * m;
    access.store(mean + c, access.load(shift + c) + m);
    access.store(squares + c, q < 0 ? V{} : q);
  });
}

/// f64 throughout; there is only one term per block.
template <class T>
void join_moments(const ops::BatchNorm& args, const RowBlocks& blocks, const Sum<T>* partials,
                  std::int64_t stride) {
  const std::int64_t width = args.x.shape.back();
  const auto total =
      static_cast<double>(counted_rows(args.lengths, args.tokens, 0, args.x.shape.rows()));
  if (!args.frames.empty()) *args.frames.as<Sum<T>>() = static_cast<Sum<T>>(total);
  const auto count = [&](std::int64_t b) {
    return static_cast<double>(
        counted_rows(args.lengths, args.tokens, blocks.first(b), blocks.last(b)));
  };
  double counts[RowBlocks::kMost];
  for (std::int64_t b = 0; b < blocks.count; ++b) counts[b] = count(b);
  parallel_ranges(width, 4 * blocks.count, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t c = first; c < last; ++c) {
      double sum = 0, squares = 0;
      for (std::int64_t b = 0; b < blocks.count; ++b)
        sum += counts[b] * static_cast<double>(partials[2 * b * stride + c]);
      const double mean = total > 0 ? sum / total : 0;
      for (std::int64_t b = 0; b < blocks.count; ++b) {
        if (counts[b] == 0) continue;
        const double away = static_cast<double>(partials[2 * b * stride + c]) - mean;
        squares +=
            static_cast<double>(partials[(2 * b + 1) * stride + c]) + counts[b] * away * away;
      }
      const auto as = [&](const TensorView& to, double value) {
        static_cast<Sum<T>*>(to.data)[c] = static_cast<Sum<T>>(value);
      };
      as(args.mean, mean), as(args.running_mean, mean);
      as(args.rstd, 1 / std::sqrt((total > 0 ? squares / total : 0) + args.eps));
      as(args.running_variance, total > 1 ? squares / (total - 1) : 0);
    }
  });
}

}  // namespace

std::int64_t batch_norm_workspace(std::int64_t rows, std::int64_t width) {
  return (RowBlocks(rows).count + 1) * 2 * RowBlocks::stride(width) *
         static_cast<std::int64_t>(sizeof(double));
}

template <class T>
void batch_norm_forward(const ops::BatchNorm& args) {
  using V = Vec<T>;
  using A = Sum<T>;
  const std::int64_t width = args.x.shape.back(), rows = args.x.shape.rows();
  const auto* x = static_cast<const T*>(args.x.data);
  auto *mean = static_cast<A*>(args.mean.data), *rstd = static_cast<A*>(args.rstd.data);
  if (args.training) {
    const RowBlocks blocks(rows);
    const std::int64_t stride = RowBlocks::stride(width);
    auto* partials = static_cast<A*>(args.workspace.data);
    parallel_ranges(blocks.count, blocks.rows_per_block * width,
                    [&](std::int64_t first, std::int64_t last) {
                      for (std::int64_t b = first; b < last; ++b) {
                        A* at = partials + b * 2 * stride;
                        std::memset(at, 0, static_cast<std::size_t>(2 * stride) * sizeof(A));
                        block_moments<T>(x, args, blocks.first(b), blocks.last(b), at, at + stride);
                      }
                    });
    join_moments<T>(args, blocks, partials, stride);
  } else {
    const auto *given = static_cast<const A*>(args.running_mean.data),
               *variance = static_cast<const A*>(args.running_variance.data);
    for (std::int64_t c = 0; c < width; ++c) {
      mean[c] = given[c];
      rstd[c] = static_cast<A>(1 / std::sqrt(static_cast<double>(variance[c]) + args.eps));
    }
  }
  auto* y = static_cast<T*>(args.y.data);
  const auto *weight = static_cast<const T*>(args.weight.data),
             *bias = static_cast<const T*>(args.bias.data);
  map_rows(y, args.lengths, args.tokens, rows, width, [&](std::int64_t r) {
    for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
      const V h = (access.load(x + r * width + c) - access.load(mean + c)) * access.load(rstd + c);
      access.store(y + r * width + c, h * access.load(weight + c) + access.load(bias + c));
    });
  });
}

template <class T>
void batch_norm_backward(const ops::BatchNormBackward& args) {
  using V = Vec<T>;
  using A = Sum<T>;
  const std::int64_t width = args.x.shape.back(), rows = args.x.shape.rows();
  const auto *x = static_cast<const T*>(args.x.data), *d_y = static_cast<const T*>(args.d_y.data),
             *weight = static_cast<const T*>(args.weight.data);
  const auto *mean = static_cast<const A*>(args.mean.data),
             *rstd = static_cast<const A*>(args.rstd.data);
  const RowBlocks blocks(rows);
  const std::int64_t stride = RowBlocks::stride(width);
  auto* partials = static_cast<A*>(args.workspace.data);
  A *products = partials + blocks.count * 2 * stride, *sums = products + stride;
  const auto clear = [&](A* at) {
    std::memset(at, 0, static_cast<std::size_t>(2 * stride) * sizeof(A));
  };
  parallel_ranges(
      blocks.count, blocks.rows_per_block * width, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t b = first; b < last; ++b) {
          A *dw = partials + b * 2 * stride, *db = dw + stride;
          clear(dw);
          for_counted(args.lengths, args.tokens, blocks.first(b), blocks.last(b),
                      [&](std::int64_t from, std::int64_t to) {
                        for (std::int64_t r = from; r < to; ++r)
                          for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
                            const V g = access.load(d_y + r * width + c);
                            const V h = (access.load(x + r * width + c) - access.load(mean + c)) *
                                        access.load(rstd + c);
                            access.store(dw + c, access.load(dw + c) + g * h);
                            access.store(db + c, access.load(db + c) + g);
                          });
                      });
        }
      });
  clear(products);
  if (blocks.count > 0) {
    add_partials(partials, blocks.count, 2 * stride, width, products);
    add_partials(partials + stride, blocks.count, 2 * stride, width, sums);
  }
  const auto add = [&](const TensorView& to, const A* from) {
    if (to.empty()) return;
    for (std::int64_t c = 0; c < width; ++c) static_cast<A*>(to.data)[c] += from[c];
  };
  add(args.d_weight, products), add(args.d_bias, sums);
  const std::int64_t n = counted_rows(args.lengths, args.tokens, 0, rows);
  const A over_n = n > 0 ? 1 / static_cast<A>(n) : A(0);
  auto* d_x = static_cast<T*>(args.d_x.data);
  map_rows(d_x, args.lengths, args.tokens, rows, width, [&](std::int64_t r) {
    for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
      const V scale = access.load(rstd + c);
      const V h = (access.load(x + r * width + c) - access.load(mean + c)) * scale;
      const V g = access.load(d_y + r * width + c) - access.load(sums + c) * over_n -
                  h * (access.load(products + c) * over_n);
      access.store(d_x + r * width + c, access.load(weight + c) * scale * g);
    });
  });
}

#define CHOIR_INSTANTIATE(T)                                       \
  template void batch_norm_forward<T>(const ops::BatchNorm& args); \
  template void batch_norm_backward<T>(const ops::BatchNormBackward& args);
CHOIR_INSTANTIATE(double)
CHOIR_INSTANTIATE(float)
CHOIR_INSTANTIATE(bf16)
CHOIR_INSTANTIATE(f16)
#undef CHOIR_INSTANTIATE

}  // namespace choir::cpu
