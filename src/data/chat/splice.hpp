#pragma once
// Positions of the frames of clips among the tokens of conversations. They are computed on the host
// from sample counts, so every size is known without a query of the device. Pure functions.

#include <cstdint>
#include <span>
#include <vector>

#include "src/data/sampling/buckets.hpp"

namespace choir {

/// One conversation: ids with a placeholder for each clip, the marks of its targets, and the
/// samples of its clips in order.
struct SpliceRow {
  std::span<const std::int32_t> ids;
  std::span<const std::uint8_t> counted;
  std::span<const std::int64_t> clip_samples;
};

struct SpliceOptions {
  SpeechFrames frames;
  std::int32_t placeholder = -1;
  /// Rows T' of a padded clip (SpeechFrames::rows): clip n (of all, in order) has [n T', (n + 1)
  /// T').
  std::int64_t padded_rows = 0;
  std::int64_t row_tokens = 0;  ///< T; 0: the longest row
};

/// Inputs of a conversation model for one micro-batch. A row of L tokens and frames has L - 1
/// inputs; the last token is only a target.
struct Splice {
  std::int64_t rows = 0, tokens = 0;  ///< B, T
  std::vector<std::int32_t> splice;   ///< [B*T]: id, or -1-r for row r of the clips; padding: 0
  std::vector<std::int32_t> targets;  ///< [B*T]: the next id if it is a target, else -1
  std::vector<std::int32_t> lengths;  ///< [B]
  std::int64_t counted = 0;           ///< number of targets
};

/// Rows of the model for a conversation: tokens - clips + rows of the clips - 1. Computed with
/// integers, unlike ceil(seconds / 0.08), which is one too many for 0.56 s.
std::int64_t splice_rows(const SpliceRow& row, const SpeechFrames& frames);

/// Throws a DataError that names the row if its numbers of placeholders and clips differ, if a clip
/// is shorter than one frame, or if the row is longer than row_tokens.
Splice make_splice(std::span<const SpliceRow> rows, const SpliceOptions& options);
/// The same into reused memory.
void make_splice(std::span<const SpliceRow> rows, const SpliceOptions& options, Splice& to);

}  // namespace choir
