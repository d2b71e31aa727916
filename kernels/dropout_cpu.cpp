#include <algorithm>
#include <cmath>

#include "kernels/dropout.hpp"
#include "kernels/parallel.hpp"
#include "kernels/simd.hpp"

namespace choir::cpu {
namespace {

constexpr int kCounters = kVectorBytes / 4;  // generator calls side by side
constexpr int kWords = 4 * kCounters;

struct Product {
  Words low, high;
};
/// The 64-bit products of every lane with one factor.
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

/// The lanes of a and b in turns; the first (0) or second (1) half of all.
template <int kHalf>
inline Words zip(Words a, Words b) {
  Words order;
  for (unsigned i = 0; i < kCounters; ++i)
    order[i] = i / 2 + (i % 2) * kCounters + kHalf * kCounters / 2;
  return __builtin_shuffle(a, b, order);
}

/// Words for kWords features from feature 4 * block on, in the order of the features.
inline void random_words(PhiloxKey key, std::uint32_t block, std::uint32_t position,
                         std::int64_t sample, std::uint32_t* words) {
  Words c0, c1 = Words{} + position, c2 = Words{} + static_cast<std::uint32_t>(sample);
  Words c3 = Words{} + static_cast<std::uint32_t>(static_cast<std::uint64_t>(sample) >> 32);
  for (std::uint32_t i = 0; i < kCounters; ++i) c0[i] = block + i;
  for (int round = 0; round < 10; ++round) {
    const Product p0 = multiply(c0, 0xD2511F53u), p1 = multiply(c2, 0xCD9E8D57u);
    c0 = p1.high ^ c1 ^ key.k0, c1 = p1.low;
    c2 = p0.high ^ c3 ^ key.k1, c3 = p0.low;
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
  const Words a = zip<0>(c0, c2), b = zip<0>(c1, c3), c = zip<1>(c0, c2), d = zip<1>(c1, c3);
  const Words in_order[4] = {zip<0>(a, b), zip<1>(a, b), zip<0>(c, d), zip<1>(c, d)};
  std::memcpy(words, in_order, sizeof in_order);
}

/// factor where the word reaches the threshold, else 0.
inline Floats factors_of(const std::uint32_t* words, std::uint32_t threshold, float factor) {
  Words w;
  std::memcpy(&w, words, sizeof w);
  return w >= threshold ? Floats{} + factor : Floats{};
}
inline Doubles factors_of(const std::uint32_t* words, std::uint32_t threshold, double factor) {
  Doubles factors{};
  for (int i = 0; i < kLanes<double>; ++i) factors[i] = words[i] >= threshold ? factor : 0.0;
  return factors;
}

template <class T>
void drop(const T* in, T* out, const std::uint32_t* words, std::int64_t n, std::uint32_t threshold,
          Sum<T> factor) {
  for_vectors<T>(0, n, [&](std::int64_t i, auto access) {
    const Vec<T> factors = factors_of(words + i, threshold, factor);
    const Vec<T> x = access.load(in + i);
    access.store(out + i, factors != 0 ? x * factors : Vec<T>{});
  });
}

}  // namespace

template <class T>
void dropout(const ops::Dropout& args) {
  const std::int64_t width = args.in.shape.back(), rows = args.in.shape.rows();
  const auto threshold = static_cast<std::uint32_t>(std::ceil(args.probability * 0x1p32));
  const auto factor = static_cast<Sum<T>>(1 / (1 - args.probability));
  parallel_ranges(rows, width * 4, [&](std::int64_t first, std::int64_t last) {
    alignas(64) std::uint32_t words[kWords];
    for (std::int64_t r = first; r < last; ++r) {
      const std::int64_t sample = args.first_sample + r / args.tokens;
      const auto position = static_cast<std::uint32_t>(args.first_position + r % args.tokens);
      const T* in = static_cast<const T*>(args.in.data) + r * width;
      T* out = static_cast<T*>(args.out.data) + r * width;
      for (std::int64_t c = 0; c < width; c += kWords) {
        random_words(args.key, static_cast<std::uint32_t>(c / 4), position, sample, words);
        drop(in + c, out + c, words, std::min<std::int64_t>(kWords, width - c), threshold, factor);
      }
    }
  });
}

template void dropout<double>(const ops::Dropout&);
template void dropout<float>(const ops::Dropout&);
template void dropout<bf16>(const ops::Dropout&);
template void dropout<f16>(const ops::Dropout&);

}  // namespace choir::cpu
