#include "choir/ops/fsq.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "choir/core/error.hpp"
#include "choir/core/text.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/fsq/fsq.hpp"

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
