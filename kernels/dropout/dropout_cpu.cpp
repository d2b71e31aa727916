#include <algorithm>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/random_words.hpp"
#include "kernels/dropout/dropout.hpp"

namespace choir::cpu {
namespace {

/// `factor` if the word is at least the threshold, otherwise 0.
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

/// Probability 0: nothing is dropped.
template <class T>
void multiply(const ops::Dropout& args) {
  const auto factor = static_cast<Sum<T>>(args.factor);
  const T* in = static_cast<const T*>(args.in.data);
  T* out = static_cast<T*>(args.out.data);
  parallel_flat(args.in.count(), [&](std::int64_t first, std::int64_t last) {
    for_vectors<T>(first, last, [&](std::int64_t i, auto access) {
      access.store(out + i, access.load(in + i) * factor);
    });
  });
}

}  // namespace

template <class T>
void dropout(const ops::Dropout& args) {
  if (args.probability == 0) return multiply<T>(args);
  const std::int64_t width = args.in.shape.back(), rows = args.in.shape.rows();
  const std::uint32_t threshold = dropout_threshold(args.probability);
  const auto factor = static_cast<Sum<T>>(args.factor / (1 - args.probability));
  const std::int64_t first_sample =
      args.first_sample + (args.first_sample_on_device ? *args.first_sample_on_device : 0);
  const auto place_of = [&](std::int64_t r) -> WordsPlace {
    const std::int64_t sample =
        args.sample_ids ? args.sample_ids[r / args.tokens] : first_sample + r / args.tokens;
    return {static_cast<std::uint32_t>(args.first_position + r % args.tokens),
            static_cast<std::uint64_t>(sample)};
  };
  const T* in = static_cast<const T*>(args.in.data);
  T* out = static_cast<T*>(args.out.data);
  parallel_ranges(rows, width * 4, [&](std::int64_t first, std::int64_t last) {
    alignas(64) std::uint32_t words[2 * kWords];
    const auto drop_row = [&](std::int64_t r, std::int64_t c, const std::uint32_t* from) {
      const std::int64_t at = r * width + c;
      drop(in + at, out + at, from, std::min<std::int64_t>(kWords, width - c), threshold, factor);
    };
    for (std::int64_t r = first; r < last; r += 2) {
      const bool two = r + 1 < last;
      const WordsPlace places[2] = {place_of(r), place_of(two ? r + 1 : r)};
      for (std::int64_t c = 0; c < width; c += kWords) {
        random_words<2>(args.key, static_cast<std::uint32_t>((args.first_column + c) / 4), places,
                        words);
        drop_row(r, c, words);
        if (two) drop_row(r + 1, c, words + kWords);
      }
    }
  });
}

template void dropout<double>(const ops::Dropout&);
template void dropout<float>(const ops::Dropout&);
template void dropout<bf16>(const ops::Dropout&);
template void dropout<f16>(const ops::Dropout&);

}  // namespace choir::cpu
