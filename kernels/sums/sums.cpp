// Sums and flat maps: checks, dispatch, CPU twins and fp64 reference.

#include "kernels/sums/sums.hpp"

#include <algorithm>
#include <bit>
#include <type_traits>

#include "kernels/cpu/row_blocks.hpp"
#include "kernels/dispatch.hpp"

namespace choir::ops {
namespace {

void check_real(const TensorView& x, const char* name) {
  check_tensor(x, x.dtype, x.count(), name);
  CHOIR_CHECK(x.dtype == DType::f32 || x.dtype == DType::f64, "{} has type {}", name,
              name_of(x.dtype));
}

double elements(const TensorView& x) {
  return static_cast<double>(x.count());
}

/// Checks tensors of one type, each with one sum per chunk of `chunk` elements (0: one sum), and
/// counts their cost.
void take(const Stream& stream, std::span<const Summed> tensors, std::int64_t chunk, double flops) {
  double of_all = 0, bytes = 0;
  for (const Summed& one : tensors) {
    const std::int64_t n = one.x.count();
    check_real(one.x, "x");
    check_tensor(one.x, tensors.front().x.dtype, n, "x");
    check_tensor(one.sums, DType::f64, chunk == 0 ? 1 : (n + chunk - 1) / chunk, "sums");
    of_all += flops * elements(one.x), bytes += as_bytes(one.x) + as_bytes(one.sums);
  }
  stream.count(of_all, bytes);
}

}  // namespace

void sums_of_squares(const Stream& stream, std::span<const Summed> tensors) {
  if (tensors.empty()) return;
  take(stream, tensors, kNormChunk, 2);
  if (on_cuda(stream)) return cuda::sums_of_squares(stream, tensors);
  if (!computes(stream)) return;
  tensors.front().x.dtype == DType::f64 ? cpu::sums_of_squares<double>(tensors)
                                        : cpu::sums_of_squares<float>(tensors);
}

void tree_sums(const Stream& stream, std::span<const Summed> tensors) {
  if (tensors.empty()) return;
  take(stream, tensors, 0, 1);
  if (on_cuda(stream)) return cuda::tree_sums(stream, tensors);
  if (!computes(stream)) return;
  tensors.front().x.dtype == DType::f64 ? cpu::tree_sums<double>(tensors)
                                        : cpu::tree_sums<float>(tensors);
}

std::int64_t bias_gradient_workspace(const Stream& stream, std::int64_t rows, std::int64_t width) {
  if (stream.device().plans_for() == DeviceKind::cuda)
    return cuda::BiasGradientPlan(rows, width).workspace_bytes();
  return cpu::bias_gradient_workspace(rows, width);
}

void bias_gradient(const Stream& stream, const TensorView& d_y, const TensorView& d_bias,
                   const TensorView& workspace) {
  const std::int64_t width = d_y.shape.back();
  check_tensor(d_y, d_y.dtype, d_y.count(), "d_y");
  check_tensor(d_bias, sum_dtype_of(d_y.dtype), width, "d_bias");
  check_workspace(workspace, bias_gradient_workspace(stream, d_y.shape.rows(), width));
  stream.count(elements(d_y), as_bytes(d_y) + 2 * as_bytes(d_bias));
  if (on_cuda(stream)) return cuda::bias_gradient(stream, d_y, d_bias, workspace);
  if (!computes(stream)) return;
  with_element(d_y.dtype, [&](auto t) { cpu::bias_gradient<decltype(t)>(d_y, d_bias, workspace); });
}

void add(const Stream& stream, const TensorView& a, const TensorView& b, const TensorView& out) {
  check_tensor(a, a.dtype, a.count(), "a");
  check_tensor(b, a.dtype, a.count(), "b");
  check_tensor(out, a.dtype, a.count(), "out");
  stream.count(elements(a), 3 * as_bytes(a));
  if (on_cuda(stream)) return cuda::add(stream, a, b, out);
  if (!computes(stream)) return;
  with_element(a.dtype, [&](auto t) { cpu::add<decltype(t)>(a, b, out); });
}

void cast(const Stream& stream, const TensorView& from, const TensorView& to) {
  check_tensor(from, from.dtype, from.count(), "from");
  check_tensor(to, to.dtype, from.count(), "to");
  stream.count(0, as_bytes(from) + as_bytes(to));
  if (on_cuda(stream)) return cuda::cast(stream, from, to);
  if (!computes(stream)) return;
  with_element(from.dtype, [&](auto f) {
    with_element(to.dtype, [&](auto t) { cpu::cast<decltype(f), decltype(t)>(from, to); });
  });
}

void scale(const Stream& stream, const TensorView& x, double factor) {
  check_real(x, "x");
  stream.count(elements(x), 2 * as_bytes(x));
  if (on_cuda(stream)) return cuda::scale(stream, x, factor);
  if (!computes(stream)) return;
  x.dtype == DType::f64 ? cpu::scale<double>(x, factor) : cpu::scale<float>(x, factor);
}

void zero(const Stream& stream, const TensorView& x) {
  check_tensor(x, x.dtype, x.count(), "x");
  stream.count(0, as_bytes(x));
  if (on_cuda(stream)) return cuda::zero(stream, x);
  if (computes(stream)) cpu::zero(x);
}

void copy(const Stream& stream, const TensorView& from, const TensorView& to) {
  check_tensor(from, from.dtype, from.count(), "from");
  check_tensor(to, from.dtype, from.count(), "to");
  stream.count(0, 2 * as_bytes(from));
  if (on_cuda(stream)) return cuda::copy(stream, from, to);
  if (computes(stream)) cpu::copy(from, to);
}

void count_targets(const Stream& stream, const CountTargets& args) {
  check_optional(args.unmasked, DType::i32, args.unmasked.count(), "unmasked");
  check_optional(args.lengths, DType::i32, args.lengths.count(), "lengths");
  check_tensor(args.count, DType::f64, 1, "count");
  const double bytes = as_bytes(args.unmasked) + as_bytes(args.lengths);
  stream.count(bytes / sizeof(std::int32_t), bytes);
  if (on_cuda(stream)) return cuda::count_targets(stream, args);
  if (!computes(stream)) return;
  cpu::count_targets(args);
}

void add_losses(const Stream& stream, const AddLosses& args) {
  check_tensor(args.own, DType::f64, 2, "own");
  check_tensor(args.sum, DType::f64, 1, "sum");
  check_tensor(args.count, DType::f64, 1, "count");
  if (on_cuda(stream)) return cuda::add_losses(stream, args);
  if (!computes(stream)) return;
  *args.sum.as<double>() += args.own.as<double>()[0];
  *args.count.as<double>() += args.own.as<double>()[1];
}

}  // namespace choir::ops

namespace choir {
namespace {

/// Elements of an operand that may be missing.
std::int64_t size_of_optional(const TensorView& x) {
  return x.empty() ? 0 : x.count();
}

}  // namespace
}  // namespace choir

namespace choir::cpu {
namespace {

constexpr int kSums = 32;

template <class A>
double chunk_sum_of_squares(const A* x, std::int64_t n) {
  double sums[kSums] = {};
  std::int64_t i = 0;
  for (; i + kSums <= n; i += kSums)
    for (int lane = 0; lane < kSums; ++lane) {
      const auto value = static_cast<double>(x[i + lane]);
      sums[lane] += value * value;
    }
  for (int lane = 0; i < n; ++i, ++lane) {
    const auto value = static_cast<double>(x[i]);
    sums[lane] += value * value;
  }
  for (int half = kSums / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  return sums[0];
}

/// The sum of 2^level leaves by neighbours; the array is overwritten.
double sum_neighbours(double* leaves, int count) {
  for (; count > 1; count /= 2)
    for (int i = 0; i < count / 2; ++i) leaves[i] = leaves[2 * i] + leaves[2 * i + 1];
  return leaves[0];
}

/// The pending sums of a binary tree built from left to right, like the carries of a binary
/// counter.
class TreeSum {
 public:
  void push(double value) {
    for (std::uint64_t n = count_++; n & 1u; n >>= 1) value = pending_[--depth_] + value;
    pending_[depth_++] = value;
  }
  /// Adds from the right: every subtree on the left is larger than those after it.
  double total() const {
    double sum = depth_ > 0 ? pending_[depth_ - 1] : 0.0;
    for (int i = depth_ - 2; i >= 0; --i) sum = pending_[i] + sum;
    return sum;
  }
  /// The same with a smaller subtree `last` at the right end.
  double total(double last) const {
    for (int i = depth_ - 1; i >= 0; --i) last = pending_[i] + last;
    return last;
  }

 private:
  double pending_[64] = {};
  int depth_ = 0;
  std::uint64_t count_ = 0;
};

template <class T>
void add_rows(const T* d_y, std::int64_t first, std::int64_t last, std::int64_t width,
              Sum<T>* sums) {
  std::int64_t r = first;
  for (; r + 4 <= last; r += 4) {
    const T* y = d_y + r * width;
    for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
      const Vec<T> pair0 = access.load(y + c) + access.load(y + width + c);
      const Vec<T> pair1 = access.load(y + 2 * width + c) + access.load(y + 3 * width + c);
      access.store(sums + c, access.load(sums + c) + (pair0 + pair1));
    });
  }
  for (; r < last; ++r)
    for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
      access.store(sums + c, access.load(sums + c) + access.load(d_y + r * width + c));
    });
}

/// Rounds to odd, which preserves the information that a second rounding, to a type with at least
/// two bits fewer, depends on.
float round_to_odd(double value) {
  const auto near = static_cast<float>(value);
  const double back = near;
  auto bits = std::bit_cast<std::uint32_t>(near);
  const bool away = (back < 0 ? -back : back) > (value < 0 ? -value : value);
  bits = (bits - (away ? 1u : 0u)) | (back != value ? 1u : 0u);
  return std::bit_cast<float>(value == value ? bits : 0x7fc00000u);
}

template <class From, class To>
To convert(From value) {
  if constexpr (std::is_same_v<From, double> && sizeof(To) == 2)
    return static_cast<To>(round_to_odd(value));
  else
    return static_cast<To>(static_cast<Sum<From>>(value));
}

}  // namespace

template <class A>
void sums_of_squares(std::span<const ops::Summed> tensors) {
  std::int64_t chunks = 0, elements = 0;
  for (const ops::Summed& one : tensors) chunks += one.sums.count(), elements += one.x.count();
  const auto sum_chunks = [&](std::int64_t first, std::int64_t last) {
    std::int64_t begin = 0;  // index of this tensor's first chunk among all
    for (const ops::Summed& one : tensors) {
      const std::int64_t end = begin + one.sums.count();
      for (std::int64_t i = std::max(first, begin); i < std::min(last, end); ++i) {
        const std::int64_t at = (i - begin) * ops::kNormChunk;
        one.sums.as<double>()[i - begin] =
            chunk_sum_of_squares(one.x.as<A>() + at, std::min(one.x.count() - at, ops::kNormChunk));
      }
      begin = end;
      if (begin >= last) return;
    }
  };
  parallel_ranges(chunks, chunks > 0 ? elements / chunks : 0, sum_chunks);
}

template <class A>
void tree_sums(std::span<const ops::Summed> tensors) {
  constexpr int kLeaves = 64;
  for (const ops::Summed& one : tensors) {
    const std::int64_t n = one.x.count(), whole = n / kLeaves;
    const A* x = one.x.as<A>();
    double leaves[kLeaves];
    TreeSum tree, rest;
    for (std::int64_t b = 0; b < whole; ++b) {
      for (int i = 0; i < kLeaves; ++i) leaves[i] = static_cast<double>(x[b * kLeaves + i]);
      tree.push(sum_neighbours(leaves, kLeaves));
    }
    for (std::int64_t i = whole * kLeaves; i < n; ++i) rest.push(static_cast<double>(x[i]));
    *one.sums.as<double>() = n % kLeaves == 0 ? tree.total() : tree.total(rest.total());
  }
}

std::int64_t bias_gradient_workspace(std::int64_t rows, std::int64_t width) {
  return RowBlocks(rows).count * RowBlocks::stride(width) *
         static_cast<std::int64_t>(sizeof(double));
}

template <class T>
void bias_gradient(const TensorView& d_y_view, const TensorView& d_bias,
                   const TensorView& workspace) {
  const std::int64_t width = d_bias.count(), stride = RowBlocks::stride(width);
  const RowBlocks blocks(d_y_view.count() / width);
  const auto* d_y = static_cast<const T*>(d_y_view.data);
  auto* partials = static_cast<Sum<T>*>(workspace.data);
  parallel_ranges(blocks.count, blocks.rows_per_block * width,
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t b = first; b < last; ++b) {
                      Sum<T>* sums = partials + b * stride;
                      std::memset(sums, 0, static_cast<std::size_t>(stride) * sizeof(Sum<T>));
                      add_rows(d_y, blocks.first(b), blocks.last(b), width, sums);
                    }
                  });
  if (blocks.count > 0)
    add_partials(partials, blocks.count, stride, width, static_cast<Sum<T>*>(d_bias.data));
}

template <class T>
void add(const TensorView& a_view, const TensorView& b_view, const TensorView& out_view) {
  const auto *a = static_cast<const T*>(a_view.data), *b = static_cast<const T*>(b_view.data);
  auto* out = static_cast<T*>(out_view.data);
  parallel_flat(out_view.count(), [&](std::int64_t first, std::int64_t last) {
    for_vectors<T>(first, last, [&](std::int64_t i, auto access) {
      access.store(out + i, access.load(a + i) + access.load(b + i));
    });
  });
}

template <class From, class To>
void cast(const TensorView& from_view, const TensorView& to_view) {
  const auto* from = static_cast<const From*>(from_view.data);
  auto* to = static_cast<To*>(to_view.data);
  parallel_flat(to_view.count(), [&](std::int64_t first, std::int64_t last) {
    if constexpr (std::is_same_v<Sum<From>, float> && std::is_same_v<Sum<To>, float>) {
      for_vectors<From>(first, last, [&](std::int64_t i, auto access) {
        access.store(to + i, access.load(from + i));
      });
    } else {
#pragma omp simd
      for (std::int64_t i = first; i < last; ++i) to[i] = convert<From, To>(from[i]);
    }
  });
}

template <class A>
void scale(const TensorView& x_view, double factor) {
  auto* x = static_cast<A*>(x_view.data);
  const auto by = static_cast<A>(factor);
  parallel_flat(x_view.count(), [&](std::int64_t first, std::int64_t last) {
#pragma omp simd
    for (std::int64_t i = first; i < last; ++i) x[i] *= by;
  });
}

void zero(const TensorView& x) {
  parallel_flat(static_cast<std::int64_t>(x.bytes()), [&](std::int64_t first, std::int64_t last) {
    std::memset(static_cast<char*>(x.data) + first, 0, static_cast<std::size_t>(last - first));
  });
}

void copy(const TensorView& from, const TensorView& to) {
  parallel_flat(static_cast<std::int64_t>(from.bytes()), [&](std::int64_t first,
                                                             std::int64_t last) {
    std::memcpy(static_cast<char*>(to.data) + first, static_cast<const char*>(from.data) + first,
                static_cast<std::size_t>(last - first));
  });
}

#define CHOIR_INSTANTIATE(T)                                                               \
  template void bias_gradient<T>(const TensorView&, const TensorView&, const TensorView&); \
  template void add<T>(const TensorView&, const TensorView&, const TensorView&);           \
  template void cast<T, double>(const TensorView&, const TensorView&);                     \
  template void cast<T, float>(const TensorView&, const TensorView&);                      \
  template void cast<T, bf16>(const TensorView&, const TensorView&);                       \
  template void cast<T, f16>(const TensorView&, const TensorView&);
CHOIR_INSTANTIATE(double)
CHOIR_INSTANTIATE(float)
CHOIR_INSTANTIATE(bf16)
CHOIR_INSTANTIATE(f16)
#undef CHOIR_INSTANTIATE

template void sums_of_squares<double>(std::span<const ops::Summed>);
template void sums_of_squares<float>(std::span<const ops::Summed>);
template void tree_sums<double>(std::span<const ops::Summed>);
template void tree_sums<float>(std::span<const ops::Summed>);
template void scale<double>(const TensorView&, double);
template void scale<float>(const TensorView&, double);

// The sign bit is the mask, so that the compiler can count 8 or 16 elements at once.
void count_targets(const ops::CountTargets& args) {
  const std::int64_t n = size_of_optional(args.unmasked), rows = size_of_optional(args.lengths);
  std::int64_t masked = 0, from_lengths = 0;
  const auto* ids = static_cast<const std::uint32_t*>(args.unmasked.data);
  const auto* lengths = static_cast<const std::int32_t*>(args.lengths.data);
  for (std::int64_t i = 0; i < n; ++i) masked += ids[i] >> 31;
  for (std::int64_t i = 0; i < rows; ++i) from_lengths += lengths[i];
  *args.count.as<double>() = args.number + static_cast<double>(n - masked + from_lengths);
}

}  // namespace choir::cpu

namespace choir::ref {
namespace {

double tree(const double* x, std::int64_t n) {
  if (n == 0) return 0;
  if (n == 1) return x[0];
  std::int64_t left = 1;
  while (2 * left < n) left *= 2;
  return tree(x, left) + tree(x + left, n - left);
}

}  // namespace

void sum_of_squares(const TensorView& x, const TensorView& partials) {
  for (std::int64_t i = 0; i < partials.count(); ++i) partials.as<double>()[i] = 0;
  for (std::int64_t i = 0; i < x.count(); ++i)
    partials.as<double>()[i / ops::kNormChunk] += x.as<double>()[i] * x.as<double>()[i];
}

void tree_sum(const TensorView& x, const TensorView& total) {
  *total.as<double>() = tree(x.as<double>(), x.count());
}

void bias_gradient(const TensorView& d_y, const TensorView& d_bias) {
  for (std::int64_t i = 0; i < d_y.count(); ++i)
    d_bias.as<double>()[i % d_bias.count()] += d_y.as<double>()[i];
}

void count_targets(const ops::CountTargets& args) {
  double& count = *args.count.as<double>();
  count = args.number;
  for (std::int64_t i = 0; i < size_of_optional(args.unmasked); ++i)
    if (args.unmasked.as<std::int32_t>()[i] >= 0) count += 1;
  for (std::int64_t i = 0; i < size_of_optional(args.lengths); ++i)
    count += args.lengths.as<std::int32_t>()[i];
}

}  // namespace choir::ref
