#pragma once
// Philox 4x32-10 in wide vectors: as many generator calls side by side as a vector has words, with
// their results in order. The words are the same as those of choir::philox, call by call.
#include "choir/core/philox.hpp"
#include "kernels/cpu/simd.hpp"

namespace choir::cpu {

inline constexpr int kCounters = kVectorBytes / 4;  // generator calls side by side
inline constexpr int kWords = 4 * kCounters;

struct Product {
  Words low, high;
};
/// The 64-bit products of every lane and one factor.
inline Product multiply(Words x, std::uint32_t factor) {
  using Longs = std::uint64_t __attribute__((vector_size(kVectorBytes)));
#if defined(__AVX512F__) && defined(__AVX512BW__)
  const __m512i f = _mm512_set1_epi64(factor);
  const Longs even = (Longs)_mm512_maskz_mul_epu32(0xff, (__m512i)x, f);
  const Longs odd = (Longs)_mm512_maskz_mul_epu32(0xff, (__m512i)((Longs)x >> 32), f);
#elif defined(__AVX2__)
  const __m256i f = _mm256_set1_epi64x(factor);
  const Longs even = (Longs)_mm256_mul_epu32((__m256i)x, f);
  const Longs odd = (Longs)_mm256_mul_epu32((__m256i)((Longs)x >> 32), f);
#else
  const Longs even = ((Longs)x & 0xffffffffu) * factor, odd = ((Longs)x >> 32) * factor;
#endif
  constexpr std::uint64_t kUpper = 0xffffffff00000000u;
  return {(Words)((even & ~kUpper) | (odd << 32)), (Words)((even >> 32) | (odd & kUpper))};
}

/// Start of a sequence of kWords words: philox(key, {first + i, second, third low, third high}) for
/// i = 0, 1 ..., in order.
struct WordsPlace {
  std::uint32_t second;
  std::uint64_t third;
};
/// Computes several sequences at once: a round depends on the previous one, so their rounds are
/// interleaved.
template <int kPlaces>
inline void random_words(PhiloxKey key, std::uint32_t first, const WordsPlace* places,
                         std::uint32_t* words) {
  struct Counters {
    Words c0, c1, c2, c3;
  };
  const Words lanes = lanes_of<Words>([](int i) { return i; }) + first;
  Counters all[kPlaces];
  for (int p = 0; p < kPlaces; ++p) {
    Counters& c = all[p];
    c.c0 = lanes;
    c.c1 = Words{} + places[p].second;
    c.c2 = Words{} + static_cast<std::uint32_t>(places[p].third);
    c.c3 = Words{} + static_cast<std::uint32_t>(places[p].third >> 32);
  }
  for (int round = 0; round < 10; ++round) {
    for (int p = 0; p < kPlaces; ++p) {
      Counters& c = all[p];
      const Product p0 = multiply(c.c0, 0xD2511F53u), p1 = multiply(c.c2, 0xCD9E8D57u);
      c.c0 = p1.high ^ c.c1 ^ key.k0, c.c1 = p1.low;
      c.c2 = p0.high ^ c.c3 ^ key.k1, c.c3 = p0.low;
    }
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
  for (int p = 0; p < kPlaces; ++p) {
    const auto& [c0, c1, c2, c3] = all[p];
    const Words a = interleave<0>(c0, c2), b = interleave<0>(c1, c3), c = interleave<1>(c0, c2),
                d = interleave<1>(c1, c3);
    const Words in_order[4] = {interleave<0>(a, b), interleave<1>(a, b), interleave<0>(c, d),
                               interleave<1>(c, d)};
    std::memcpy(words + p * kWords, in_order, sizeof in_order);
  }
}

inline void random_words(PhiloxKey key, std::uint32_t first, std::uint32_t second,
                         std::uint64_t third, std::uint32_t* words) {
  const WordsPlace place{second, third};
  random_words<1>(key, first, &place, words);
}

}  // namespace choir::cpu
