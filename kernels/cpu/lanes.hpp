#pragma once
// Lanes of vectors in another order, and what follows from it: transposes of squares, and the sums
// of many vectors at once. GCC 12 takes lanes that a loop fills for variables, and an order of
// lanes is then put together one by one wherever it is used; lanes_of() is a constant.
#include <utility>

namespace choir::cpu {

template <class V>
inline constexpr int kLanesOf = sizeof(V) / sizeof(V{}[0]);

/// {lane(0), lane(1), ...}
template <class V, class Lane>
consteval V lanes_of(Lane lane) {
  return [&]<int... i>(std::integer_sequence<int, i...>) {
    return V{static_cast<decltype(V{}[0] + V{}[0])>(lane(i))...};
  }
  (std::make_integer_sequence<int, kLanesOf<V>>());
}

/// Lane i is lane(i) of a, or of b where it is past the last; `lane` captures nothing.
template <class V, class Lane>
inline V shuffled(V a, V b, Lane) {
  return [&]<int... i>(std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(a, b, Lane{}(i)...);
  }
  (std::make_integer_sequence<int, kLanesOf<V>>());
}

/// a[0], b[0], a[1], b[1] ...; the first (0) or second (1) half of all.
template <int kHalf, class V>
inline V interleave(V a, V b) {
  return shuffled(a, b,
                  [](int i) { return i / 2 + (i % 2) * kLanesOf<V> + kHalf * kLanesOf<V> / 2; });
}

/// v[i][j] <-> v[j][i], of as many vectors as they have lanes: step by step twice as many elements
/// of one column are neighbours.
template <class V>
inline void transpose_square(V* v) {
  constexpr int kCount = kLanesOf<V>;
#pragma GCC unroll 4
  for (int size = 1; size < kCount; size *= 2) {
    V next[kCount];
#pragma GCC unroll 16
    for (int i = 0; i < kCount / 2; ++i) {
      next[2 * i] = interleave<0>(v[i], v[i + kCount / 2]);
      next[2 * i + 1] = interleave<1>(v[i], v[i + kCount / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) v[i] = next[i];
  }
}

/// Lane i is the sum of the lanes of v[i], of as many vectors as they have lanes, which are
/// overwritten. Each sum is made in the same order.
template <class V>
inline V sums_of_lanes(V* v) {
#pragma GCC unroll 4
  for (int half = kLanesOf<V> / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i)
      v[i] = interleave<0>(v[i], v[i + half]) + interleave<1>(v[i], v[i + half]);
  return v[0];
}

}  // namespace choir::cpu
