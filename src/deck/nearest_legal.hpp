#pragma once
// Formats the legal values nearest to an illegal one.
#include <algorithm>
#include <cstdint>
#include <string>

#include <fmt/core.h>

namespace choir {

/// The divisors of n up to `most` (0: no limit) nearest to `wish`: "3 or 4", or one number if there
/// is only one.
inline std::string divisors_around(std::int64_t n, std::int64_t wish, std::int64_t most = 0) {
  std::int64_t below = 0, above = 0;
  for (std::int64_t d = std::min(wish, n); d >= 1 && below == 0; --d)
    if (n % d == 0) below = d;
  for (std::int64_t d = wish; d <= (most > 0 ? std::min(n, most) : n) && above == 0; ++d)
    if (n % d == 0) above = d;
  if (below == 0 || above == 0 || below == above) return std::to_string(below + above);
  return fmt::format("{} or {}", below, above);
}

/// The multiples of `unit` nearest to `value`: "96 or 128".
inline std::string multiples_around(std::int64_t value, std::int64_t unit) {
  const std::int64_t below = value / unit * unit;
  return below == 0 ? std::to_string(unit) : fmt::format("{} or {}", below, below + unit);
}

}  // namespace choir
