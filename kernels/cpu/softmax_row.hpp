#pragma once
// One row of logits on the CPU, shared by the loss functions: its maximum and sum of exponentials
// in one pass (blocks that fit L1; online softmax, Milakov & Gimelshein 2018), and the softmax that
// overwrites it.
#include <cmath>
#include <limits>

#include "kernels/cpu/vector_math.hpp"

namespace choir::cpu {

inline constexpr std::int64_t kSoftmaxBlock = 4096;

/// The function of a logit before the softmax; this one leaves it as it is.
struct NoMap {
  template <class V>
  V operator()(V z) const {
    return z;
  }
  template <class V>
  V with_slope(V gradient, V) const {
    return gradient;
  }
};

/// Sums of a row of logits: the largest, the sum of exp(z - max), the sum of z.
template <class T>
struct RowSum {
  Sum<T> max = -std::numeric_limits<Sum<T>>::infinity();
  double exps = 0, logits = 0;
};

template <class T, class Map = NoMap>
inline Sum<T> block_max(const T* z, std::int64_t first, std::int64_t last, const Map& map = {}) {
  constexpr Sum<T> kLow = -std::numeric_limits<Sum<T>>::infinity();
  constexpr std::int64_t kStep = 4 * kLanes<T>;
  Vec<T> m0 = Vec<T>{} + kLow, m1 = m0, m2 = m0, m3 = m0;
  const auto larger = [](Vec<T> a, Vec<T> b) { return a > b ? a : b; };
  std::int64_t i = first;
  for (; i + kStep <= last; i += kStep) {
    m0 = larger(m0, map(load(z + i)));
    m1 = larger(m1, map(load(z + i + kLanes<T>)));
    m2 = larger(m2, map(load(z + i + 2 * kLanes<T>)));
    m3 = larger(m3, map(load(z + i + 3 * kLanes<T>)));
  }
  for_vectors<T>(i, last, [&](std::int64_t c, auto access) {
    m0 = larger(m0, map(access.load(z + c, kLow)));
  });
  return max_of_lanes(larger(larger(m0, m1), larger(m2, m3)));
}

template <class T, class Map = NoMap>
inline Sum<T> block_sum(const T* z, std::int64_t first, std::int64_t last, Sum<T> max,
                        const Map& map = {}) {
  constexpr Sum<T> kLow = -std::numeric_limits<Sum<T>>::infinity();
  constexpr std::int64_t kStep = 2 * kLanes<T>;
  Vec<T> s0{}, s1{};
  std::int64_t i = first;
  for (; i + kStep <= last; i += kStep) {
    s0 += exp(map(load(z + i)) - max);
    s1 += exp(map(load(z + i + kLanes<T>)) - max);
  }
  for_vectors<T>(i, last, [&](std::int64_t c, auto access) {
    s0 += exp(map(access.load(z + c, kLow)) - max);
  });
  return sum_of_lanes(s0 + s1);
}

template <class T, class Map = NoMap>
inline double block_total(const T* z, std::int64_t first, std::int64_t last, const Map& map = {}) {
  Vec<T> sum{};
  for_vectors<T>(first, last, [&](std::int64_t c, auto access) { sum += map(access.load(z + c)); });
  return static_cast<double>(sum_of_lanes(sum));
}

template <class T, class Map = NoMap>
inline RowSum<T> sum_row(const T* z, std::int64_t count, bool with_logits, const Map& map = {}) {
  RowSum<T> row;
  for (std::int64_t first = 0; first < count; first += kSoftmaxBlock) {
    const std::int64_t last = first + kSoftmaxBlock < count ? first + kSoftmaxBlock : count;
    const Sum<T> max = block_max(z, first, last, map);
    if (max > row.max) {
      row.exps *= std::exp(static_cast<double>(row.max) - static_cast<double>(max));
      row.max = max;
    }
    // Only -inf so far: shift by 0, so that these add 0 and a NaN is still detected.
    const Sum<T> shift = std::isinf(row.max) && row.max < 0 ? Sum<T>(0) : row.max;
    row.exps += static_cast<double>(block_sum(z, first, last, shift, map));
    if (with_logits) row.logits += block_total(z, first, last, map);
  }
  return row;
}

/// z = exp(z - max) factor - smooth, which is softmax times scale minus the term of label
/// smoothing, times the slope of the map.
template <class T, bool kSmooth, class Map = NoMap>
inline void write_softmax(T* z, std::int64_t count, Sum<T> max, Sum<T> factor, Sum<T> smooth,
                          const Map& map = {}) {
  for_vectors<T>(0, count, [&](std::int64_t c, auto access) {
    const Vec<T> value = map(access.load(z + c));
    const Vec<T> p = exp(value - max) * factor;
    access.store(z + c, map.with_slope(kSmooth ? p - smooth : p, value));
  });
}

template <class T>
inline void clear(T* z, std::int64_t first, std::int64_t last) {
  if (last > first)
    std::memset(static_cast<void*>(z + first), 0,
                static_cast<std::size_t>(last - first) * sizeof(T));
}

}  // namespace choir::cpu
