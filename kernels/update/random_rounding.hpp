#pragma once
// Rounding of f32 to one of its two bf16 neighbours at random, such that the mean is the number
// itself: 16 random bits are added to the bits of the number, and the upper 16 are kept. Infinity
// and NaN are unchanged. Element i uses word e % 4 of philox_at(key, e / 4, update), where e is its
// number in the whole model, so the result does not depend on the layout.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "choir/core/dtype.hpp"
#include "choir/core/philox.hpp"
#include "kernels/cpu/random_words.hpp"
#include "kernels/update/element_numbers.hpp"

namespace choir::cpu {

/// The source of the random words of a range of elements.
struct Rounding {
  PhiloxKey key;
  ops::ElementNumbers elements;
  std::uint64_t update;

  /// Draws the words of kWords elements from i on, as many at a time as have consecutive numbers. A
  /// vector of calls begins at a multiple of kWords, so that their numbers have the same upper
  /// half.
  void draw(std::int64_t i, std::uint32_t* words) const {
    alignas(kVectorBytes) std::uint32_t some[kWords];
    for (std::int64_t done = 0; done < kWords;) {
      const std::int64_t element = elements.at(i + done), skip = element % kWords;
      std::int64_t count = std::min(kWords - done, kWords - skip);
      if (elements.width > 0)
        count = std::min(count, elements.width - (elements.column + i + done) % elements.width);
      draw_aligned(element - skip, count == kWords ? words : some);
      if (count < kWords)
        std::memcpy(words + done, some + skip, static_cast<std::size_t>(count) * sizeof *words);
      done += count;
    }
  }
  void draw_aligned(std::int64_t element, std::uint32_t* words) const {
    const auto call = static_cast<std::uint64_t>(element) / 4;
    random_words(key, static_cast<std::uint32_t>(call), static_cast<std::uint32_t>(call >> 32),
                 update, words);
  }
};

/// Rounds every lane to one of its two bf16 neighbours, as f32, by the lower 16 bits of its word.
inline Floats round_at_random(Floats v, Words words) {
  const Words rounded = ((Words)v + (words & 0xffffu)) & 0xffff0000u;
  return v == v ? (Floats)rounded : v;
}
inline Floats round_at_random(Floats v, const std::uint32_t* random) {
  Words words;
  std::memcpy(&words, random, sizeof words);
  return round_at_random(v, words);
}
/// The same by the upper 16 bits: the two uses of a word are independent.
inline Floats round_by_upper(Floats v, const std::uint32_t* random) {
  Words words;
  std::memcpy(&words, random, sizeof words);
  return round_at_random(v, words >> 16);
}

}  // namespace choir::cpu

namespace choir::ref {

/// The word of an element.
inline std::uint32_t random_word(PhiloxKey key, std::int64_t element, double update) {
  const auto e = static_cast<std::uint64_t>(element);
  return philox_at(key, e / 4, static_cast<std::uint64_t>(update))[e % 4];
}

/// The nearest f32 of x, rounded by the lower 16 bits of `word`.
inline bf16 round_at_random(double x, std::uint32_t word) {
  const auto near = static_cast<float>(x);
  if (std::isnan(near)) return bf16(near);
  const auto bits = std::bit_cast<std::uint32_t>(near) + (word & 0xffffu);
  return bf16(std::bit_cast<float>(bits & 0xffff0000u));
}

}  // namespace choir::ref
