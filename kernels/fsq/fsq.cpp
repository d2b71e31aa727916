#include "kernels/fsq/fsq.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "choir/core/error.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/simd.hpp"
#include "kernels/dispatch.hpp"
#include "src/core/text.hpp"

namespace choir {

FsqNumbers fsq_numbers(const ops::FsqLevels& levels) {
  FsqNumbers numbers;
  numbers.count = levels.count;
  for (int d = 0; d < levels.count; ++d) {
    const std::int32_t count = levels.of[static_cast<std::size_t>(d)];
    FsqNumber& n = numbers.of[d];
    n.scale = (count - 1) / 2.0 * (1 - 1e-3);
    n.offset = count % 2 == 0 ? 0.5 : 0;
    n.shift = std::tan(n.offset / n.scale);
    n.half = count / 2;
    n.levels = count;
  }
  return numbers;
}

namespace ops {
namespace {

/// Checks that the columns of a row are whole vectors and returns the number of vectors.
std::int64_t check_vectors(const FsqLevels& levels, const TensorView& x, const char* name) {
  CHOIR_CHECK(levels.count >= 1 && levels.count <= FsqLevels::kMost, "{} levels", levels.count);
  for (int d = 0; d < levels.count; ++d)
    CHOIR_CHECK(levels.of[static_cast<std::size_t>(d)] >= 2, "{} levels of a number",
                levels.of[static_cast<std::size_t>(d)]);
  check_tensor(x, x.dtype, x.count(), name);
  CHOIR_CHECK(x.shape.back() % levels.count == 0, "{} {}: rows are not whole vectors of {}", name,
              to_string(x.shape), levels.count);
  return x.count() / levels.count;
}

void check_indices(const FsqLevels& levels, const TensorView& indices) {
  const auto* at = static_cast<const std::int32_t*>(indices.data);
  for (std::int64_t i = 0; i < indices.count(); ++i)
    CHOIR_CHECK(at[i] >= 0 && at[i] < levels.codes(), "index {} of {} codes", at[i],
                levels.codes());
}

}  // namespace

FsqLevels FsqLevels::parse(std::string_view text, const std::string& key) {
  const auto refuse = [&](const std::string& why) {
    throw DeckError(
        fmt::format("{} = \"{}\": {}", key, text, why),
        fmt::format("give up to {} numbers of levels, each at least 2, with a product of at "
                    "most {}, such as \"8,5,5,5\"",
                    kMost, kMostCodes));
  };
  FsqLevels levels;
  for (const std::string& word : split(std::string(text), ',')) {
    std::int32_t number = 0;
    const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (problem != std::errc() || end != word.data() + word.size())
      refuse(fmt::format("'{}' is not a number", word));
    if (number < 2) refuse(fmt::format("{} levels are too few", number));
    if (levels.count == kMost) refuse(fmt::format("more than {} numbers", kMost));
    // Each factor is checked before the next one, so that products do not overflow.
    if (number > kMostCodes || levels.codes() * number > kMostCodes)
      refuse(fmt::format("more than {} codes", kMostCodes));
    levels.of[static_cast<std::size_t>(levels.count++)] = number;
  }
  if (levels.count == 0) refuse("no levels given");
  return levels;
}

std::int64_t FsqLevels::codes() const {
  std::int64_t product = 1;
  for (int d = 0; d < count; ++d) product *= of[static_cast<std::size_t>(d)];
  return product;
}

void fsq_forward(const Stream& stream, const FsqForward& args) {
  check_vectors(args.levels, args.in, "in");
  check_tensor(args.codes, args.in.dtype, args.in.count(), "codes");
  stream.count(20 * static_cast<double>(args.in.count()), 2 * as_bytes(args.in));
  if (args.in.count() == 0) return;
  if (on_cuda(stream)) return cuda::fsq_forward(stream, args);
  if (!computes(stream)) return;
  with_element(args.in.dtype, [&](auto t) { cpu::fsq_forward<decltype(t)>(args); });
}

void fsq_backward(const Stream& stream, const FsqBackward& args) {
  check_vectors(args.levels, args.in, "in");
  check_tensor(args.d_codes, args.in.dtype, args.in.count(), "d_codes");
  check_tensor(args.d_in, args.in.dtype, args.in.count(), "d_in");
  stream.count(20 * static_cast<double>(args.in.count()), 3 * as_bytes(args.in));
  if (args.in.count() == 0) return;
  if (on_cuda(stream)) return cuda::fsq_backward(stream, args);
  if (!computes(stream)) return;
  with_element(args.in.dtype, [&](auto t) { cpu::fsq_backward<decltype(t)>(args); });
}

void fsq_indices(const Stream& stream, const FsqIndices& args) {
  const std::int64_t vectors = check_vectors(args.levels, args.codes, "codes");
  check_tensor(args.indices, DType::i32, vectors, "indices");
  stream.count(4 * static_cast<double>(args.codes.count()),
               as_bytes(args.codes) + as_bytes(args.indices));
  if (vectors == 0) return;
  if (on_cuda(stream)) return cuda::fsq_indices(stream, args);
  if (!computes(stream)) return;
  with_element(args.codes.dtype, [&](auto t) { cpu::fsq_indices<decltype(t)>(args); });
}

void fsq_codes(const Stream& stream, const FsqCodes& args) {
  const std::int64_t vectors = check_vectors(args.levels, args.codes, "codes");
  check_tensor(args.indices, DType::i32, vectors, "indices");
  stream.count(4 * static_cast<double>(args.codes.count()),
               as_bytes(args.codes) + as_bytes(args.indices));
  if (vectors == 0) return;
  if (on_cuda(stream)) return cuda::fsq_codes(stream, args);
  if (!computes(stream)) return;
  check_indices(args.levels, args.indices);
  with_element(args.codes.dtype, [&](auto t) { cpu::fsq_codes<decltype(t)>(args); });
}

}  // namespace ops
}  // namespace choir

namespace choir::cpu {
namespace {

constexpr std::int64_t kFsqCost = 16;  // work of a tanh in units of a copy

/// Calls f(element, its levels) for all elements of whole vectors, with several threads.
template <class F>
void for_fsq(const ops::FsqLevels& levels, std::int64_t count, const F& f) {
  const FsqNumbers numbers = fsq_numbers(levels);
  parallel_ranges(count / numbers.count, numbers.count * kFsqCost,
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t v = first; v < last; ++v)
                      for (int d = 0; d < numbers.count; ++d)
                        f(v * numbers.count + d, numbers.of[d]);
                  });
}

template <class T>
double fsq_value(const TensorView& x, std::int64_t i) {
  return static_cast<double>(static_cast<Sum<T>>(static_cast<const T*>(x.data)[i]));
}
template <class T>
void set_fsq_value(const TensorView& x, std::int64_t i, double value) {
  static_cast<T*>(x.data)[i] = static_cast<T>(static_cast<Sum<T>>(value));
}

}  // namespace

template <class T>
void fsq_forward(const ops::FsqForward& args) {
  for_fsq(args.levels, args.in.count(), [&](std::int64_t i, const FsqNumber& n) {
    const double y = n.scale * std::tanh(fsq_value<T>(args.in, i) + n.shift) - n.offset;
    set_fsq_value<T>(args.codes, i, std::rint(y) / n.half);
  });
}

template <class T>
void fsq_backward(const ops::FsqBackward& args) {
  for_fsq(args.levels, args.in.count(), [&](std::int64_t i, const FsqNumber& n) {
    const double t = std::tanh(fsq_value<T>(args.in, i) + n.shift);
    set_fsq_value<T>(args.d_in, i,
                     fsq_value<T>(args.d_codes, i) * (n.scale * (1 - t * t) / n.half));
  });
}

template <class T>
void fsq_indices(const ops::FsqIndices& args) {
  const FsqNumbers numbers = fsq_numbers(args.levels);
  for (std::int64_t v = 0; v < args.indices.count(); ++v) {
    std::int32_t index = 0, base = 1;
    for (int d = 0; d < numbers.count; ++d) {
      const FsqNumber& n = numbers.of[d];
      const double q = std::rint(fsq_value<T>(args.codes, v * numbers.count + d) * n.half);
      // The order of the arguments maps NaN to the lowest level.
      const double level = std::fmin(std::fmax(q + n.half, 0.0), n.levels - 1.0);
      index += static_cast<std::int32_t>(level) * base;
      base *= n.levels;
    }
    static_cast<std::int32_t*>(args.indices.data)[v] = index;
  }
}

template <class T>
void fsq_codes(const ops::FsqCodes& args) {
  const FsqNumbers numbers = fsq_numbers(args.levels);
  for (std::int64_t v = 0; v < args.indices.count(); ++v) {
    std::int32_t left = static_cast<const std::int32_t*>(args.indices.data)[v];
    for (int d = 0; d < numbers.count; ++d) {
      const FsqNumber& n = numbers.of[d];
      set_fsq_value<T>(args.codes, v * numbers.count + d,
                       static_cast<double>(left % n.levels - n.half) / n.half);
      left /= n.levels;
    }
  }
}

#define CHOIR_INSTANTIATE(T)                              \
  template void fsq_forward<T>(const ops::FsqForward&);   \
  template void fsq_backward<T>(const ops::FsqBackward&); \
  template void fsq_indices<T>(const ops::FsqIndices&);   \
  template void fsq_codes<T>(const ops::FsqCodes&);
CHOIR_INSTANTIATE(double)
CHOIR_INSTANTIATE(float)
CHOIR_INSTANTIATE(bf16)
CHOIR_INSTANTIATE(f16)
#undef CHOIR_INSTANTIATE

}  // namespace choir::cpu

namespace choir::ref {
namespace {

/// Calls f(element, its levels) with constants computed from their definitions for each element.
template <class F>
void for_numbers(const ops::FsqLevels& levels, std::int64_t count, const F& f) {
  for (std::int64_t i = 0; i < count; ++i)
    f(i, static_cast<double>(levels.of[static_cast<std::size_t>(i % levels.count)]));
}

double squash_scale(double levels) {
  return (levels - 1) / 2 * (1 - 1e-3);
}
double squash_offset(double levels) {
  return std::fmod(levels, 2) == 0 ? 0.5 : 0;
}
double squashed(double x, double levels) {
  return std::tanh(x + std::tan(squash_offset(levels) / squash_scale(levels)));
}

}  // namespace

void fsq_forward(const ops::FsqForward& args) {
  for_numbers(args.levels, args.in.count(), [&](std::int64_t i, double levels) {
    const double y =
        squash_scale(levels) * squashed(args.in.as<double>()[i], levels) - squash_offset(levels);
    args.codes.as<double>()[i] = std::rint(y) / std::floor(levels / 2);
  });
}

void fsq_backward(const ops::FsqBackward& args) {
  for_numbers(args.levels, args.in.count(), [&](std::int64_t i, double levels) {
    const double t = squashed(args.in.as<double>()[i], levels);
    args.d_in.as<double>()[i] =
        args.d_codes.as<double>()[i] * squash_scale(levels) * (1 - t * t) / std::floor(levels / 2);
  });
}

void fsq_indices(const ops::FsqIndices& args) {
  const int count = args.levels.count;
  for (std::int64_t v = 0; v < args.indices.count(); ++v) {
    std::int64_t index = 0, base = 1;
    for (int d = 0; d < count; ++d) {
      const std::int32_t levels = args.levels.of[static_cast<std::size_t>(d)];
      const double q = args.codes.as<double>()[v * count + d] * (levels / 2);
      const auto n = static_cast<std::int64_t>(std::rint(q)) + levels / 2;
      index += std::clamp<std::int64_t>(n, 0, levels - 1) * base;
      base *= levels;
    }
    args.indices.as<std::int32_t>()[v] = static_cast<std::int32_t>(index);
  }
}

void fsq_codes(const ops::FsqCodes& args) {
  const int count = args.levels.count;
  for (std::int64_t v = 0; v < args.indices.count(); ++v) {
    std::int32_t left = args.indices.as<std::int32_t>()[v];
    for (int d = 0; d < count; ++d) {
      const std::int32_t levels = args.levels.of[static_cast<std::size_t>(d)];
      args.codes.as<double>()[v * count + d] =
          static_cast<double>(left % levels - levels / 2) / (levels / 2);
      left /= levels;
    }
  }
}

}  // namespace choir::ref
