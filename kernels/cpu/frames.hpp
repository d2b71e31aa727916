#pragma once
// Number of valid frames in a padded batch.
#include <cstdint>

namespace choir {

/// Valid frames of a sample: lengths[sample], clamped to [0, tokens]; without lengths all.
constexpr std::int64_t frames_of(const std::int32_t* lengths, std::int64_t sample,
                                 std::int64_t tokens) {
  if (lengths == nullptr) return tokens;
  const std::int64_t n = lengths[sample];
  return n < 0 ? 0 : n < tokens ? n : tokens;
}

/// Number of valid rows among [first, last). Row r is frame r % tokens of sample r / tokens;
/// `first` belongs to `sample`.
constexpr std::int64_t counted_rows(const std::int32_t* lengths, std::int64_t tokens,
                                    std::int64_t sample, std::int64_t first, std::int64_t last) {
  if (lengths == nullptr) return last - first;
  std::int64_t n = 0;
  for (std::int64_t start = sample * tokens; start < last; start += tokens, ++sample) {
    const std::int64_t from = start > first ? start : first;
    const std::int64_t end = start + frames_of(lengths, sample, tokens);
    if (end > from) n += (end < last ? end : last) - from;
  }
  return n;
}
constexpr std::int64_t counted_rows(const std::int32_t* lengths, std::int64_t tokens,
                                    std::int64_t first, std::int64_t last) {
  return counted_rows(lengths, tokens, first / tokens, first, last);
}

}  // namespace choir
