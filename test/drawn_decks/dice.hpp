#pragma once
// Random choices that are the same on every machine: libraries may implement
// std::uniform_int_distribution differently, but the standard fixes the words of std::mt19937_64.
#include <cstdint>
#include <random>
#include <vector>

namespace choir::test {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}

  /// A number from 0 to n - 1; n is small, so the bias of the remainder does not matter.
  std::size_t below(std::size_t n) { return engine_() % n; }
  bool one_in(std::size_t n) { return below(n) == 0; }
  template <class T>
  const T& of(const std::vector<T>& list) {
    return list.at(below(list.size()));
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace choir::test
