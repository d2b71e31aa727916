#include <cmath>
#include <limits>

#include "kernels/cross_entropy.hpp"
#include "kernels/parallel.hpp"
#include "kernels/vector_math.hpp"

namespace choir::cpu {
namespace {

constexpr std::int64_t kBlock = 4096;

/// Of the logits of a row: the largest, the sum of exp(z - max), the sum of z.
template <class T>
struct RowSum {
  Sum<T> max = -std::numeric_limits<Sum<T>>::infinity();
  double exps = 0, logits = 0;
};

template <class T>
Sum<T> block_max(const T* z, std::int64_t first, std::int64_t last) {
  constexpr Sum<T> kLow = -std::numeric_limits<Sum<T>>::infinity();
  constexpr std::int64_t kStep = 4 * kLanes<T>;
  Vec<T> m0 = Vec<T>{} + kLow, m1 = m0, m2 = m0, m3 = m0;
  const auto larger = [](Vec<T> a, Vec<T> b) { return a > b ? a : b; };
  std::int64_t i = first;
  for (; i + kStep <= last; i += kStep) {
    m0 = larger(m0, load(z + i));
    m1 = larger(m1, load(z + i + kLanes<T>));
    m2 = larger(m2, load(z + i + 2 * kLanes<T>));
    m3 = larger(m3, load(z + i + 3 * kLanes<T>));
  }
  for_vectors<T>(i, last,
                 [&](std::int64_t c, auto access) { m0 = larger(m0, access.load(z + c, kLow)); });
  return max_of_lanes(larger(larger(m0, m1), larger(m2, m3)));
}

template <class T>
Sum<T> block_sum(const T* z, std::int64_t first, std::int64_t last, Sum<T> max) {
  constexpr Sum<T> kLow = -std::numeric_limits<Sum<T>>::infinity();
  constexpr std::int64_t kStep = 2 * kLanes<T>;
  Vec<T> s0{}, s1{};
  std::int64_t i = first;
  for (; i + kStep <= last; i += kStep) {
    s0 += exp(load(z + i) - max);
    s1 += exp(load(z + i + kLanes<T>) - max);
  }
  for_vectors<T>(i, last,
                 [&](std::int64_t c, auto access) { s0 += exp(access.load(z + c, kLow) - max); });
  return sum_of_lanes(s0 + s1);
}

template <class T>
double block_total(const T* z, std::int64_t first, std::int64_t last) {
  Vec<T> sum{};
  for_vectors<T>(first, last, [&](std::int64_t c, auto access) { sum += access.load(z + c); });
  return static_cast<double>(sum_of_lanes(sum));
}

template <class T>
RowSum<T> sum_row(const T* z, std::int64_t count, bool with_logits) {
  RowSum<T> row;
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const std::int64_t last = first + kBlock < count ? first + kBlock : count;
    const Sum<T> max = block_max(z, first, last);
    if (max > row.max) {
      row.exps *= std::exp(static_cast<double>(row.max) - static_cast<double>(max));
      row.max = max;
    }
    // Nothing but -inf so far: shift by 0, so that these add 0 and a NaN still shows.
    const Sum<T> shift = std::isinf(row.max) && row.max < 0 ? Sum<T>(0) : row.max;
    row.exps += static_cast<double>(block_sum(z, first, last, shift));
    if (with_logits) row.logits += block_total(z, first, last);
  }
  return row;
}

/// z = exp(z - max) factor - smooth, which is softmax times scale less what label smoothing wants.
template <class T, bool kSmooth>
void write_softmax(T* z, std::int64_t count, Sum<T> max, Sum<T> factor, Sum<T> smooth) {
  for_vectors<T>(0, count, [&](std::int64_t c, auto access) {
    const Vec<T> p = exp(access.load(z + c) - max) * factor;
    access.store(z + c, kSmooth ? p - smooth : p);
  });
}

/// The numbers that the gradient and loss of every row share.
struct Terms {
  double scale, smoothing;  ///< e
  double vocabulary;
  template <class Args>
  explicit Terms(const Args& args)
      : scale(args.scale * (args.device_scale ? *args.device_scale : 1.0)),
        smoothing(args.label_smoothing),
        vocabulary(static_cast<double>(args.vocabulary)) {}
  /// `target` and `mean` relative to the maximum.
  double loss(double exps, double target, double mean) const {
    const double loss = std::log(exps) - (1 - smoothing) * target;
    return smoothing > 0 ? loss - smoothing * mean : loss;
  }
};

template <class T>
void clear(T* z, std::int64_t first, std::int64_t last) {
  if (last > first)
    std::memset(static_cast<void*>(z + first), 0,
                static_cast<std::size_t>(last - first) * sizeof(T));
}

/// The gradient over `counted` of `columns` logits; `target` is one of them or negative.
template <class T>
void write_row(const Terms& terms, T* z, std::int64_t columns, std::int64_t counted,
               std::int64_t target, Sum<T> max, double exps) {
  const double smooth = terms.scale * terms.smoothing / terms.vocabulary;
  const double shifted =
      target < 0 ? 0
                 : static_cast<double>(static_cast<Sum<T>>(z[target])) - static_cast<double>(max);
  const auto factor = static_cast<Sum<T>>(terms.scale / exps);
  if (smooth != 0)
    write_softmax<T, true>(z, counted, max, factor, static_cast<Sum<T>>(smooth));
  else
    write_softmax<T, false>(z, counted, max, factor, 0);
  if (target >= 0) {
    const double p = std::exp(shifted) / exps;
    z[target] =
        static_cast<T>(static_cast<Sum<T>>((p - 1 + terms.smoothing) * terms.scale - smooth));
  }
  clear(z, counted, columns);
}

template <class T>
Sum<T> finish_row(const ops::CrossEntropy& args, const Terms& terms, T* z, std::int64_t columns,
                  std::int32_t target) {
  if (target < 0) {
    if (args.write_gradient) clear(z, 0, columns);
    return 0;
  }
  const RowSum<T> row = sum_row(z, args.vocabulary, terms.smoothing > 0);
  const auto max = static_cast<double>(row.max);
  const double shifted = static_cast<double>(static_cast<Sum<T>>(z[target])) - max;
  if (args.write_gradient) write_row(terms, z, columns, args.vocabulary, target, row.max, row.exps);
  return static_cast<Sum<T>>(terms.loss(row.exps, shifted, row.logits / terms.vocabulary - max));
}

/// One rank's part of the vocabulary.
struct Columns {
  std::int64_t all, counted, first;
  explicit Columns(const ops::ParallelCrossEntropy& args)
      : all(args.logits.shape.back()), first(args.first_column) {
    const std::int64_t left = args.vocabulary - first;
    counted = left < 0 ? 0 : left < all ? left : all;
  }
  /// The column of a target here; negative if it lies elsewhere.
  std::int64_t local(std::int32_t target) const {
    const std::int64_t c = target - first;
    return c >= 0 && c < counted ? c : -1;
  }
};

/// f(row, target) for all rows, shared among threads.
template <class F>
void for_rows(const ops::ParallelCrossEntropy& args, std::int64_t work, const F& f) {
  const auto* targets = static_cast<const std::int32_t*>(args.targets.data);
  parallel_ranges(args.logits.shape.rows(), work, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) f(r, targets[r]);
  });
}

}  // namespace

template <class T>
void cross_entropy(const ops::CrossEntropy& args) {
  const Terms terms(args);
  const std::int64_t rows = args.logits.shape.rows(), columns = args.logits.shape.back();
  const auto* targets = static_cast<const std::int32_t*>(args.targets.data);
  auto* losses = static_cast<Sum<T>*>(args.losses.data);
  parallel_ranges(rows, columns * 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r)
      losses[r] = finish_row(args, terms, static_cast<T*>(args.logits.data) + r * columns, columns,
                             targets[r]);
  });
}

template <class T>
void cross_entropy_maxima(const ops::ParallelCrossEntropy& args) {
  const Columns columns(args);
  const std::int64_t per_row = args.sums_per_row();
  auto* local_maxima = static_cast<Sum<T>*>(args.local_maxima.data);
  auto* maxima = static_cast<Sum<T>*>(args.maxima.data);
  for_rows(args, columns.all * 2, [&](std::int64_t r, std::int32_t target) {
    const T* z = static_cast<const T*>(args.logits.data) + r * columns.all;
    Sum<T>* sums = static_cast<Sum<T>*>(args.sums.data) + r * per_row;
    RowSum<T> row;
    if (target >= 0)
      row = sum_row(z, columns.counted, per_row > 2);
    else
      row.max = 0;
    const std::int64_t local = target < 0 ? -1 : columns.local(target);
    local_maxima[r] = maxima[r] = row.max;
    sums[0] = static_cast<Sum<T>>(row.exps);
    sums[1] = local < 0 ? Sum<T>(0) : static_cast<Sum<T>>(z[local]);
    if (per_row > 2) sums[2] = static_cast<Sum<T>>(row.logits);
  });
}

template <class T>
void cross_entropy_sums(const ops::ParallelCrossEntropy& args) {
  const Columns columns(args);
  const std::int64_t per_row = args.sums_per_row();
  const auto* local_maxima = static_cast<const Sum<T>*>(args.local_maxima.data);
  const auto* maxima = static_cast<const Sum<T>*>(args.maxima.data);
  for_rows(args, 16, [&](std::int64_t r, std::int32_t target) {
    if (target < 0) return;
    Sum<T>* sums = static_cast<Sum<T>*>(args.sums.data) + r * per_row;
    // Where all is -inf the sum is 0, or NaN, whatever the scale.
    if (!(std::isinf(local_maxima[r]) && local_maxima[r] < 0))
      sums[0] *= std::exp(local_maxima[r] - maxima[r]);
    if (columns.local(target) >= 0) sums[1] -= maxima[r];
    if (per_row > 2) sums[2] -= static_cast<Sum<T>>(columns.counted) * maxima[r];
  });
}

template <class T>
void cross_entropy_finish(const ops::ParallelCrossEntropy& args) {
  const Columns columns(args);
  const Terms terms(args);
  const std::int64_t per_row = args.sums_per_row();
  const auto* maxima = static_cast<const Sum<T>*>(args.maxima.data);
  auto* losses = static_cast<Sum<T>*>(args.losses.data);
  for_rows(args, columns.all * 2, [&](std::int64_t r, std::int32_t target) {
    T* z = static_cast<T*>(args.logits.data) + r * columns.all;
    losses[r] = 0;
    if (target < 0) {
      if (args.write_gradient) clear(z, 0, columns.all);
      return;
    }
    const Sum<T>* sums = static_cast<const Sum<T>*>(args.sums.data) + r * per_row;
    const auto exps = static_cast<double>(sums[0]);
    const double mean = per_row > 2 ? static_cast<double>(sums[2]) / terms.vocabulary : 0;
    losses[r] = static_cast<Sum<T>>(terms.loss(exps, static_cast<double>(sums[1]), mean));
    if (args.write_gradient)
      write_row(terms, z, columns.all, columns.counted, columns.local(target), maxima[r], exps);
  });
}

#define CHOIR_INSTANTIATE(T)                                               \
  template void cross_entropy<T>(const ops::CrossEntropy&);                \
  template void cross_entropy_maxima<T>(const ops::ParallelCrossEntropy&); \
  template void cross_entropy_sums<T>(const ops::ParallelCrossEntropy&);   \
  template void cross_entropy_finish<T>(const ops::ParallelCrossEntropy&);
CHOIR_INSTANTIATE(double)
CHOIR_INSTANTIATE(float)
CHOIR_INSTANTIATE(bf16)
CHOIR_INSTANTIATE(f16)
#undef CHOIR_INSTANTIATE

}  // namespace choir::cpu
