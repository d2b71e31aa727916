#include <cmath>

#include "kernels/cpu/row_blocks.hpp"
#include "kernels/split_norm/split_norm.hpp"

namespace choir::cpu {

template <class T>
void split_norm_moments(const TensorView& x, const TensorView& moments) {
  const std::int64_t width = x.shape.back();
  auto* out = static_cast<Sum<T>*>(moments.data);
  parallel_ranges(x.shape.rows(), width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const T* row = static_cast<const T*>(x.data) + r * width;
      Vec<T> total{}, square{};
      for_vectors<T>(0, width, [&](std::int64_t c, auto access) { total += access.load(row + c); });
      const Sum<T> mean = sum_of_lanes(total) / static_cast<Sum<T>>(width);
      for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
        const Vec<T> d = access.load(row + c, mean) - mean;
        square += d * d;
      });
      out[2 * r] = mean;
      out[2 * r + 1] = sum_of_lanes(square);
    }
  });
}

template <class T>
void split_norm_forward(const ops::SplitNormForward& args) {
  using A = Sum<T>;
  const std::int64_t width = args.x.shape.back(), rows = args.x.shape.rows();
  const std::int64_t ranks = args.moments.shape[0];
  const auto* moments = static_cast<const A*>(args.moments.data);
  const T *weight = static_cast<const T*>(args.weight.data),
          *bias = static_cast<const T*>(args.bias.data);
  parallel_ranges(rows, width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      A mean = 0, square = 0;
      for (std::int64_t k = 0; k < ranks; ++k) mean += moments[(k * rows + r) * 2];
      mean /= static_cast<A>(ranks);
      for (std::int64_t k = 0; k < ranks; ++k) {
        const A* m = moments + (k * rows + r) * 2;
        square += m[1] + static_cast<A>(width) * (m[0] - mean) * (m[0] - mean);
      }
      const A rstd =
          1 / std::sqrt(square / static_cast<A>(ranks * width) + static_cast<A>(args.eps));
      static_cast<A*>(args.mean.data)[r] = mean;
      static_cast<A*>(args.rstd.data)[r] = rstd;
      const T* x = static_cast<const T*>(args.x.data) + r * width;
      T* out = static_cast<T*>(args.out.data) + r * width;
      for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
        access.store(out + c, (access.load(x + c) - mean) * rstd * access.load(weight + c) +
                                  access.load(bias + c));
      });
    }
  });
}

template <class T>
void split_norm_sums(const ops::SplitNormBackward& args) {
  using A = Sum<T>;
  const std::int64_t width = args.x.shape.back();
  const T* weight = static_cast<const T*>(args.weight.data);
  auto* sums = static_cast<A*>(args.sums.data);
  parallel_ranges(args.x.shape.rows(), 2 * width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const T *x = static_cast<const T*>(args.x.data) + r * width,
              *d_out = static_cast<const T*>(args.d_out.data) + r * width;
      const A mean = static_cast<const A*>(args.mean.data)[r];
      Vec<T> sum{}, product{};
      for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
        const Vec<T> g = access.load(d_out + c) * access.load(weight + c);
        sum += g;  // 0 in missing lanes
        product += g * (access.load(x + c) - mean);
      });
      sums[2 * r] = sum_of_lanes(sum);
      sums[2 * r + 1] = sum_of_lanes(product) * static_cast<const A*>(args.rstd.data)[r];
    }
  });
}

std::int64_t split_norm_workspace(std::int64_t rows, std::int64_t width) {
  return RowBlocks(rows).count * 2 * RowBlocks::stride(width) *
         static_cast<std::int64_t>(sizeof(double));
}

template <class T>
void split_norm_backward(const ops::SplitNormBackward& args) {
  using A = Sum<T>;
  const std::int64_t width = args.x.shape.back();
  const RowBlocks blocks(args.x.shape.rows());
  const std::int64_t stride = RowBlocks::stride(width);
  const T* weight = static_cast<const T*>(args.weight.data);
  const auto* sums = static_cast<const A*>(args.sums.data);
  auto* partials = static_cast<A*>(args.workspace.data);
  parallel_ranges(
      blocks.count, blocks.rows_per_block * width,
      [&](std::int64_t first_block, std::int64_t last_block) {
        for (std::int64_t b = first_block; b < last_block; ++b) {
          A *d_weight = partials + b * 2 * stride, *d_bias = d_weight + stride;
          std::memset(d_weight, 0, static_cast<std::size_t>(2 * stride) * sizeof(A));
          for (std::int64_t r = blocks.first(b); r < blocks.last(b); ++r) {
            const T *x = static_cast<const T*>(args.x.data) + r * width,
                    *d_out = static_cast<const T*>(args.d_out.data) + r * width;
            T* d_x = static_cast<T*>(args.d_x.data) + r * width;
            const A mean = static_cast<const A*>(args.mean.data)[r],
                    rstd = static_cast<const A*>(args.rstd.data)[r];
            const A mean_g = sums[2 * r] / static_cast<A>(args.width),
                    mean_gh = sums[2 * r + 1] / static_cast<A>(args.width);
            for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
              const Vec<T> dy = access.load(d_out + c), h = (access.load(x + c) - mean) * rstd;
              access.store(d_x + c, rstd * (dy * access.load(weight + c) - mean_g - h * mean_gh));
              access.store(d_weight + c, access.load(d_weight + c) + dy * h);
              access.store(d_bias + c, access.load(d_bias + c) + dy);
            });
          }
        }
      });
  if (blocks.count == 0) return;
  add_partials(partials, blocks.count, 2 * stride, width, static_cast<A*>(args.d_weight.data));
  add_partials(partials + stride, blocks.count, 2 * stride, width,
               static_cast<A*>(args.d_bias.data));
}

#define CHOIR_INSTANTIATE(T)                                                 \
  template void split_norm_moments<T>(const TensorView&, const TensorView&); \
  template void split_norm_forward<T>(const ops::SplitNormForward&);         \
  template void split_norm_sums<T>(const ops::SplitNormBackward&);           \
  template void split_norm_backward<T>(const ops::SplitNormBackward&);
CHOIR_INSTANTIATE(double)
CHOIR_INSTANTIATE(float)
CHOIR_INSTANTIATE(bf16)
CHOIR_INSTANTIATE(f16)
#undef CHOIR_INSTANTIATE

}  // namespace choir::cpu
