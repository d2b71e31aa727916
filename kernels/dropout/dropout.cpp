#include "kernels/dropout/dropout.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/random_words.hpp"
#include "kernels/dispatch.hpp"

namespace choir::ops {

void dropout(const Stream& stream, const Dropout& args) {
  check_tensor(args.in, args.in.dtype, args.in.count(), "in");
  check_tensor(args.out, args.in.dtype, args.in.count(), "out");
  // NaN is refused, too. Above 1 - 2^-32 the threshold would not fit into 32 bits.
  CHOIR_CHECK(args.probability >= 0 && args.probability <= 1 - 0x1p-32, "probability {}",
              args.probability);
  CHOIR_CHECK(std::isfinite(args.factor), "factor {}", args.factor);
  CHOIR_CHECK(args.first_column >= 0 && args.first_column % 4 == 0, "features from {} on",
              args.first_column);
  CHOIR_CHECK(args.tokens >= 1 && args.first_sample >= 0 && args.first_position >= 0,
              "{} tokens from sample {}, position {}", args.tokens, args.first_sample,
              args.first_position);
  stream.count(2.0 * static_cast<double>(args.in.count()), 2 * as_bytes(args.in));
  if (on_cuda(stream)) return cuda::dropout(stream, args);
  if (!computes(stream)) return;
  with_element(args.in.dtype, [&](auto t) { cpu::dropout<decltype(t)>(args); });
}

}  // namespace choir::ops

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

namespace choir::ref {

void dropout(const ops::Dropout& args) {
  const std::int64_t width = args.in.shape.back();
  for (std::int64_t i = 0; i < args.in.count(); ++i) {
    const std::int64_t r = i / width, c = args.first_column + i % width;
    const std::int64_t first =
        args.first_sample + (args.first_sample_on_device ? *args.first_sample_on_device : 0);
    const auto sample = static_cast<std::uint64_t>(
        args.sample_ids ? args.sample_ids[r / args.tokens] : first + r / args.tokens);
    const PhiloxBlock block = philox(
        args.key, {static_cast<std::uint32_t>(c / 4),
                   static_cast<std::uint32_t>(args.first_position + r % args.tokens),
                   static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(sample >> 32)});
    const bool keep =
        static_cast<double>(block[static_cast<std::size_t>(c % 4)]) >= args.probability * 0x1p32;
    args.out.as<double>()[i] =
        keep ? args.in.as<double>()[i] * args.factor / (1 - args.probability) : 0;
  }
}

}  // namespace choir::ref
