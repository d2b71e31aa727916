#pragma once
// Permutations of vector lanes, and operations based on them: transposes of squares, and the sums
// of many vectors at once. GCC 12 treats lanes that a loop fills as variables, and then assembles
// the permutation one by one at every use; lanes_of() is a constant.
#include <utility>

namespace choir::cpu {

template <class V>
inline constexpr int kLanesOf = sizeof(V) / sizeof(V{}[0]);

/// The vector {lane(0), lane(1), ...}.
template <class V, class Lane>
consteval V lanes_of(Lane lane) {
  return [&]<int... i>(std::integer_sequence<int, i...>) {
    return V{static_cast<decltype(V{}[0] + V{}[0])>(lane(i))...};
  }
  (std::make_integer_sequence<int, kLanesOf<V>>());
}

/// Lane i is lane(i) of a, or of b for indices past the last lane of a; `lane` captures nothing.
template <class V, class Lane>
inline V shuffled(V a, V b, Lane) {
  return [&]<int... i>(std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(a, b, Lane{}(i)...);
  }
  (std::make_integer_sequence<int, kLanesOf<V>>());
}

/// The first (0) or second (1) half of a[0], b[0], a[1], b[1] ...
template <int kHalf, class V>
inline V interleave(V a, V b) {
  return shuffled(a, b,
                  [](int i) { return i / 2 + (i % 2) * kLanesOf<V> + kHalf * kLanesOf<V> / 2; });
}

/// Exchanges v[i][j] and v[j][i], for as many vectors as they have lanes. Every step doubles the
/// number of adjacent elements of a column.
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

/// Lane i is the sum of the lanes of v[i], for as many vectors as they have lanes; v is
/// overwritten. Every sum is computed in the same order.
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
