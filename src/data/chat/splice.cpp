#include "src/data/chat/splice.hpp"

#include <algorithm>

#include "choir/core/error.hpp"

namespace choir {
namespace {

constexpr std::int32_t kIgnored = -1;

void check_row(const SpliceRow& row, std::size_t index, const SpliceOptions& options) {
  CHOIR_CHECK(row.ids.size() == row.counted.size(), "{} ids, {} marks", row.ids.size(),
              row.counted.size());
  const auto placeholders = std::count(row.ids.begin(), row.ids.end(), options.placeholder);
  if (placeholders != std::ssize(row.clip_samples))
    throw DataError(fmt::format("conversation {} of a batch has {} clips and {} placeholders",
                                index, row.clip_samples.size(), placeholders),
                    "give each clip one placeholder");
  for (const std::int64_t samples : row.clip_samples) {
    const std::int64_t clip_rows = options.frames.rows(samples);
    if (clip_rows < 1)
      throw DataError(
          fmt::format("a clip of conversation {} has {} samples, less than one frame of the "
                      "encoder",
                      index, samples),
          "remove it");
    CHOIR_CHECK(clip_rows <= options.padded_rows, "a clip of {} rows in {}", clip_rows,
                options.padded_rows);
  }
}

}  // namespace

std::int64_t splice_rows(const SpliceRow& row, const SpeechFrames& frames) {
  std::int64_t rows = std::ssize(row.ids) - std::ssize(row.clip_samples) - 1;
  for (const std::int64_t samples : row.clip_samples) rows += frames.rows(samples);
  return rows;
}

Splice make_splice(std::span<const SpliceRow> rows, const SpliceOptions& options) {
  Splice made;
  make_splice(rows, options, made);
  return made;
}

void make_splice(std::span<const SpliceRow> rows, const SpliceOptions& options, Splice& to) {
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    check_row(rows[i], i, options);
    longest = std::max(longest, splice_rows(rows[i], options.frames));
  }
  to.rows = std::ssize(rows);
  to.tokens = options.row_tokens > 0 ? options.row_tokens : std::max<std::int64_t>(longest, 1);
  if (longest > to.tokens)
    throw DataError(fmt::format("a conversation has {} tokens and frames, but a row only {}",
                                longest + 1, to.tokens + 1),
                    "remove longer conversations, or allow longer rows");
  to.splice.assign(static_cast<std::size_t>(to.rows * to.tokens), 0);
  to.targets.assign(to.splice.size(), kIgnored);
  to.lengths.assign(rows.size(), 0);
  to.counted = 0;
  std::int64_t clip = 0;
  for (std::size_t b = 0; b < rows.size(); ++b) {
    const SpliceRow& row = rows[b];
    const std::int64_t length = std::max<std::int64_t>(splice_rows(row, options.frames), 0);
    to.lengths[b] = static_cast<std::int32_t>(length);
    const auto begin = static_cast<std::int64_t>(b) * to.tokens;
    std::int64_t at = 0;  // position in the row; the last one is only a target
    const auto put = [&](std::int32_t value) {
      if (at < length) to.splice[static_cast<std::size_t>(begin + at)] = value;
      ++at;
    };
    std::size_t next_clip = 0;
    for (std::size_t i = 0; i < row.ids.size(); ++i) {
      if (row.ids[i] == options.placeholder) {
        const std::int64_t heard = options.frames.rows(row.clip_samples[next_clip++]);
        for (std::int64_t r = 0; r < heard; ++r)
          put(static_cast<std::int32_t>(-1 - (clip * options.padded_rows + r)));
        ++clip;
        continue;
      }
      if (row.counted[i] != 0 && at > 0) {
        to.targets[static_cast<std::size_t>(begin + at - 1)] = row.ids[i];
        ++to.counted;
      }
      put(row.ids[i]);
    }
  }
}

}  // namespace choir
