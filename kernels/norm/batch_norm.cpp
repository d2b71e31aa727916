// Batch normalisation and its running statistics: checks, dispatch, CPU twins and fp64 reference.

#include "kernels/norm/batch_norm.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/frames.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/row_blocks.hpp"
#include "kernels/dispatch.hpp"

namespace choir::ops {
namespace {

void check_frames(const TensorView& x, const std::int32_t* lengths, std::int64_t tokens) {
  CHOIR_CHECK(x.shape.rank() > 0, "batch normalisation of a scalar");
  CHOIR_CHECK(lengths == nullptr || (tokens > 0 && x.shape.rows() % tokens == 0),
              "{} rows are not whole samples of {} frames", x.shape.rows(), tokens);
  check_tensor(x, x.dtype, x.count(), "x");
}

}  // namespace

std::int64_t batch_norm_workspace(const Stream& stream, std::int64_t rows, std::int64_t width) {
  if (stream.device().plans_for() == DeviceKind::cuda)
    return cuda::batch_norm_workspace(rows, width);
  return cpu::batch_norm_workspace(rows, width);
}

void batch_norm_forward(const Stream& stream, const BatchNorm& args) {
  const DType dtype = args.x.dtype, stats = sum_dtype_of(dtype);
  check_frames(args.x, args.lengths, args.tokens);
  const std::int64_t n = args.x.count(), width = args.x.shape.back();
  check_tensor(args.y, dtype, n, "y");
  check_tensor(args.weight, dtype, width, "weight");
  check_tensor(args.bias, dtype, width, "bias");
  check_tensor(args.mean, stats, width, "mean");
  check_tensor(args.rstd, stats, width, "rstd");
  check_tensor(args.running_mean, stats, width, "running_mean");
  check_tensor(args.running_variance, stats, width, "running_variance");
  check_optional(args.frames, stats, 1, "frames");
  if (args.training)
    check_workspace(args.workspace, batch_norm_workspace(stream, args.x.shape.rows(), width));
  stream.count((args.training ? 8.0 : 4.0) * static_cast<double>(n),
               (args.training ? 3.0 : 2.0) * as_bytes(args.x) + 2 * as_bytes(args.weight) +
                   4 * as_bytes(args.mean));
  if (on_cuda(stream)) return cuda::batch_norm_forward(stream, args);
  if (!computes(stream)) return;
  with_element(dtype, [&](auto t) { cpu::batch_norm_forward<decltype(t)>(args); });
}

void batch_norm_backward(const Stream& stream, const BatchNormBackward& args) {
  const DType dtype = args.x.dtype, stats = sum_dtype_of(dtype);
  check_frames(args.x, args.lengths, args.tokens);
  const std::int64_t n = args.x.count(), width = args.x.shape.back();
  check_tensor(args.d_y, dtype, n, "d_y");
  check_tensor(args.d_x, dtype, n, "d_x");
  check_tensor(args.weight, dtype, width, "weight");
  check_tensor(args.mean, stats, width, "mean");
  check_tensor(args.rstd, stats, width, "rstd");
  check_optional(args.d_weight, stats, width, "d_weight");
  check_optional(args.d_bias, stats, width, "d_bias");
  check_workspace(args.workspace, batch_norm_workspace(stream, args.x.shape.rows(), width));
  stream.count(14.0 * static_cast<double>(n),
               5.0 * as_bytes(args.x) + as_bytes(args.weight) + 2 * as_bytes(args.mean) +
                   2 * as_bytes(args.d_weight) + 2 * as_bytes(args.d_bias));
  if (on_cuda(stream)) return cuda::batch_norm_backward(stream, args);
  if (!computes(stream)) return;
  with_element(dtype, [&](auto t) { cpu::batch_norm_backward<decltype(t)>(args); });
}

void update_running_statistics(const Stream& stream, const RunningUpdate& args) {
  const DType dtype = args.mean.dtype;
  const std::int64_t count = args.frames.count(), width = args.mean.count();
  CHOIR_CHECK(dtype == DType::f64 || dtype == DType::f32, "running statistics of type {}",
              name_of(dtype));
  check_tensor(args.mean, dtype, width, "mean");
  check_tensor(args.variance, dtype, width, "variance");
  check_tensor(args.frames, dtype, count, "frames");
  check_tensor(args.records, dtype, 2 * count * width, "records");
  CHOIR_CHECK(args.momentum >= 0 && args.momentum <= 1, "momentum {}", args.momentum);
  stream.count(3 * static_cast<double>(args.records.count()),
               as_bytes(args.records) + as_bytes(args.frames) + 4 * as_bytes(args.mean));
  if (on_cuda(stream)) return cuda::update_running_statistics(stream, args);
  if (!computes(stream)) return;
  if (dtype == DType::f64)
    cpu::update_running_statistics<double>(args);
  else
    cpu::update_running_statistics<float>(args);
}

}  // namespace choir::ops

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

namespace {

constexpr std::int64_t kGroup = 64;  // channels whose sums stay in registers or L1

}  // namespace

// Processes one line of the records at a time: the inner loop is over consecutive channels.
template <class T>
void update_running_statistics(const ops::RunningUpdate& args) {
  if (args.control != nullptr && args.control->apply == 0) return;
  const std::int64_t width = args.mean.count(), count = args.frames.count();
  const T *frames = args.frames.as<T>(), *records = args.records.as<T>();
  T* const results[] = {args.mean.as<T>(), args.variance.as<T>()};
  const double rest = 1 - args.momentum, momentum = args.momentum;
  const std::int64_t groups = (width + kGroup - 1) / kGroup;
  parallel_ranges(2 * groups, kGroup * count, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t g = first; g < last; ++g) {
      const std::int64_t kind = g / groups, begin = g % groups * kGroup;
      const std::int64_t n = std::min(kGroup, width - begin);
      T* const result = results[kind] + begin;
      double sums[kGroup];
      for (std::int64_t i = 0; i < n; ++i) sums[i] = static_cast<double>(result[i]);
      for (std::int64_t m = 0; m < count; ++m) {
        if (frames[m] < 2) continue;
        const T* own = records + (2 * m + kind) * width + begin;
#pragma omp simd
        for (std::int64_t i = 0; i < n; ++i)
          sums[i] = rest * sums[i] + momentum * static_cast<double>(own[i]);
      }
      for (std::int64_t i = 0; i < n; ++i) result[i] = static_cast<T>(sums[i]);
    }
  });
}

template void update_running_statistics<float>(const ops::RunningUpdate& args);
template void update_running_statistics<double>(const ops::RunningUpdate& args);

}  // namespace choir::cpu

namespace choir::ref {
namespace {

bool counts(const std::int32_t* lengths, std::int64_t tokens, std::int64_t row) {
  return row % tokens < frames_of(lengths, row / tokens, tokens);
}

}  // namespace

void batch_norm_forward(const ops::BatchNorm& args) {
  const std::int64_t width = args.x.shape.back(), rows = args.x.shape.rows();
  const double* x = args.x.as<double>();
  for (std::int64_t c = 0; c < width; ++c) {
    if (args.training) {
      double n = 0, sum = 0, squares = 0;
      for (std::int64_t r = 0; r < rows; ++r)
        if (counts(args.lengths, args.tokens, r)) n += 1, sum += x[r * width + c];
      const double mean = n > 0 ? sum / n : 0;
      if (!args.frames.empty()) *args.frames.as<double>() = n;
      for (std::int64_t r = 0; r < rows; ++r)
        if (counts(args.lengths, args.tokens, r)) squares += std::pow(x[r * width + c] - mean, 2);
      args.mean.as<double>()[c] = mean;
      args.rstd.as<double>()[c] = 1 / std::sqrt((n > 0 ? squares / n : 0) + args.eps);
      args.running_mean.as<double>()[c] = mean;
      args.running_variance.as<double>()[c] = n > 1 ? squares / (n - 1) : 0;
    } else {
      args.mean.as<double>()[c] = args.running_mean.as<double>()[c];
      args.rstd.as<double>()[c] = 1 / std::sqrt(args.running_variance.as<double>()[c] + args.eps);
    }
    for (std::int64_t r = 0; r < rows; ++r)
      args.y.as<double>()[r * width + c] = counts(args.lengths, args.tokens, r)
                                               ? (x[r * width + c] - args.mean.as<double>()[c]) *
                                                         args.rstd.as<double>()[c] *
                                                         args.weight.as<double>()[c] +
                                                     args.bias.as<double>()[c]
                                               : 0.0;
  }
}

void batch_norm_backward(const ops::BatchNormBackward& args) {
  const std::int64_t width = args.x.shape.back(), rows = args.x.shape.rows();
  const double *x = args.x.as<double>(), *d_y = args.d_y.as<double>();
  for (std::int64_t c = 0; c < width; ++c) {
    const double mean = args.mean.as<double>()[c], rstd = args.rstd.as<double>()[c];
    double n = 0, sum = 0, products = 0;
    for (std::int64_t r = 0; r < rows; ++r)
      if (counts(args.lengths, args.tokens, r)) {
        n += 1, sum += d_y[r * width + c];
        products += d_y[r * width + c] * (x[r * width + c] - mean) * rstd;
      }
    if (!args.d_bias.empty()) args.d_bias.as<double>()[c] += sum;
    if (!args.d_weight.empty()) args.d_weight.as<double>()[c] += products;
    for (std::int64_t r = 0; r < rows; ++r)
      args.d_x.as<double>()[r * width + c] =
          counts(args.lengths, args.tokens, r)
              ? args.weight.as<double>()[c] * rstd *
                    (d_y[r * width + c] - sum / n - (x[r * width + c] - mean) * rstd * products / n)
              : 0.0;
  }
}

void update_running_statistics(const ops::RunningUpdate& args) {
  if (args.control != nullptr && args.control->apply == 0) return;
  const std::int64_t width = args.mean.count();
  for (std::int64_t m = 0; m < args.frames.count(); ++m) {
    if (args.frames.as<double>()[m] < 2) continue;
    const double* own = args.records.as<double>() + 2 * m * width;
    for (std::int64_t c = 0; c < width; ++c) {
      double &mean = args.mean.as<double>()[c], &variance = args.variance.as<double>()[c];
      mean = (1 - args.momentum) * mean + args.momentum * own[c];
      variance = (1 - args.momentum) * variance + args.momentum * own[width + c];
    }
  }
}

}  // namespace choir::ref
