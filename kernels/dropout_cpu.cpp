#include <cmath>

#include "kernels/dropout.hpp"
#include "kernels/parallel.hpp"
#include "kernels/simd.hpp"

namespace choir::cpu {
namespace {

constexpr int kCounters = 16;  // generator calls side by side
constexpr int kWords = 4 * kCounters;

/// Words of counters {block ..., position, sample}: word c belongs to feature 4 * block + c.
inline void random_words(PhiloxKey key, std::uint32_t block, std::uint32_t position,
                         std::int64_t sample, std::uint32_t* words) {
  std::uint32_t c0[kCounters], c1[kCounters], c2[kCounters], c3[kCounters];
  for (std::uint32_t i = 0; i < kCounters; ++i) {
    c0[i] = block + i;
    c1[i] = position;
    c2[i] = static_cast<std::uint32_t>(sample);
    c3[i] = static_cast<std::uint32_t>(static_cast<std::uint64_t>(sample) >> 32);
  }
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (int i = 0; i < kCounters; ++i) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0[i],
                          p1 = std::uint64_t{0xCD9E8D57u} * c2[i];
      const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1[i] ^ key.k0;
      const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3[i] ^ key.k1;
      c0[i] = n0, c1[i] = static_cast<std::uint32_t>(p1);
      c2[i] = n2, c3[i] = static_cast<std::uint32_t>(p0);
    }
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
  for (int i = 0; i < kCounters; ++i) {
    words[4 * i] = c0[i], words[4 * i + 1] = c1[i];
    words[4 * i + 2] = c2[i], words[4 * i + 3] = c3[i];
  }
}

template <class T>
void drop(const T* in, T* out, const std::uint32_t* words, int n, std::uint32_t threshold,
          Sum<T> factor) {
#pragma omp simd
  for (int i = 0; i < n; ++i) {
    const Sum<T> kept = static_cast<Sum<T>>(in[i]) * factor;
    out[i] = static_cast<T>(words[i] >= threshold ? kept : Sum<T>(0));
  }
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
        if (c + kWords <= width)
          drop(in + c, out + c, words, kWords, threshold, factor);
        else
          drop(in + c, out + c, words, static_cast<int>(width - c), threshold, factor);
      }
    }
  });
}

template void dropout<double>(const ops::Dropout&);
template void dropout<float>(const ops::Dropout&);
template void dropout<bf16>(const ops::Dropout&);

}  // namespace choir::cpu
