#pragma once
// Which frames of a padded batch count.
#include <cstdint>

namespace choir {

/// Frames of a sample that count: lengths[sample], kept within [0, tokens]; without lengths all.
constexpr std::int64_t frames_of(const std::int32_t* lengths, std::int64_t sample,
                                 std::int64_t tokens) {
  if (lengths == nullptr) return tokens;
  const std::int64_t n = lengths[sample];
  return n < 0 ? 0 : n < tokens ? n : tokens;
}

/// How many of rows [first, last) count: row r is frame r % tokens of sample r / tokens.
constexpr std::int64_t counted_rows(const std::int32_t* lengths, std::int64_t tokens,
                                    std::int64_t first, std::int64_t last) {
  if (lengths == nullptr) return last - first;
  std::int64_t n = 0;
  for (std::int64_t r = first; r < last;) {
    const std::int64_t sample = r / tokens, start = sample * tokens;
    const std::int64_t stop = start + tokens < last ? start + tokens : last;
    const std::int64_t end = start + frames_of(lengths, sample, tokens);
    if (end > r) n += (end < stop ? end : stop) - r;
    r = stop;
  }
  return n;
}

}  // namespace choir
