#pragma once
// Where the frames of clips stand among the tokens of conversations, computed on the host from
// sample counts, so that no device is asked and every size is known beforehand. Pure functions.
#include <cstdint>
#include <span>
#include <vector>

#include "choir/data/speech/speech_buckets.hpp"

namespace choir {

/// One conversation: ids with a placeholder for each clip, which of them are targets, and the
/// samples of the clips in order.
struct SpliceRow {
  std::span<const std::int32_t> ids;
  std::span<const std::uint8_t> counted;
  std::span<const std::int64_t> clip_samples;
};

struct SpliceOptions {
  SpeechFrames frames;
  std::int32_t placeholder = -1;
  /// Rows of a padded clip, T' (SpeechFrames::rows): clip n (of all, in order) has [n T', (n + 1)
  /// T').
  std::int64_t padded_rows = 0;
  std::int64_t row_tokens = 0;  ///< T; 0: the longest row
};

/// What a model of conversations reads of a micro-batch. A row of L tokens and frames has L - 1
/// inputs, the last being a target only.
struct Splice {
  std::int64_t rows = 0, tokens = 0;  ///< B, T
  std::vector<std::int32_t> splice;   ///< [B*T]: id, or -1-r for row r of the clips; behind: 0
  std::vector<std::int32_t> targets;  ///< [B*T]: the next id where it counts, else -1
  std::vector<std::int32_t> lengths;  ///< [B]
  std::int64_t counted = 0;           ///< targets that count
};

/// Rows of the model that a conversation needs: tokens - clips + rows of the clips - 1. Integers
/// throughout, unlike ceil(seconds / 0.08), which is one too many for 0.56 s.
std::int64_t splice_rows(const SpliceRow& row, const SpeechFrames& frames);

/// Throws DataError for a row whose placeholders and clips differ in number, that has a clip
/// without a frame, or that is longer than row_tokens, naming its index.
Splice make_splice(std::span<const SpliceRow> rows, const SpliceOptions& options);
/// The same into memory that is reused.
void make_splice(std::span<const SpliceRow> rows, const SpliceOptions& options, Splice& to);

}  // namespace choir
