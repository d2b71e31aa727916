#pragma once
// Numbers of very different magnitudes, so that the order of additions changes the bits.
#include <cmath>

#include "choir/core/philox.hpp"

namespace choir::test {

template <class T>
T wild(int leaf, std::size_t i) {
  const PhiloxBlock r = philox_at(philox_key(11, "tree"), i, static_cast<std::uint64_t>(leaf));
  const int exponent = static_cast<int>(r[1] % 24) - 12;
  return static_cast<T>(std::ldexp(uniform01(r[0]) - 0.5, exponent));
}

}  // namespace choir::test
