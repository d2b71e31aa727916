#pragma once
// Which utterances micro-batch j of step s holds: a function of the seed, the data and a position
// of a few integers, the same for any number of ranks.
#include <cstdint>
#include <span>
#include <vector>

#include "choir/data/speech/speech_blend.hpp"
#include "choir/data/speech/speech_buckets.hpp"

namespace choir {

/// Where a step begins.
struct SpeechCursor {
  std::int64_t window = 0;
  std::int64_t offset = 0;          ///< micro-batches of the window that are used up
  std::vector<std::int64_t> drawn;  ///< of each pool before the window
  friend bool operator==(const SpeechCursor&, const SpeechCursor&) = default;

  /// To and from the integers that a checkpoint keeps. of_integers throws DataError for a number of
  /// pools other than `pools`.
  std::vector<std::int64_t> to_integers() const;
  static SpeechCursor of_integers(std::span<const std::int64_t> integers, int pools);
};

/// The global micro-batches of a step.
struct SpeechStep {
  std::vector<SpeechRow> rows;
  std::vector<std::int64_t> begins;  ///< of each micro-batch in `rows`, and the end
  SpeechCursor after;                ///< where the next step begins
  std::int64_t targets = 0;          ///< labels of all rows

  std::int64_t micro_batches() const { return static_cast<std::int64_t>(begins.size()) - 1; }
  std::span<const SpeechRow> micro_batch(std::int64_t j) const {
    const auto first = static_cast<std::size_t>(begins[static_cast<std::size_t>(j)]);
    return std::span(rows).subspan(
        first, static_cast<std::size_t>(begins[static_cast<std::size_t>(j) + 1]) - first);
  }
};

/// The micro-batches of one window, and what planning them needs.
struct SpeechWindow {
  struct Part {
    std::int64_t first = 0, count = 0;
  };
  std::int64_t number = -1;
  std::vector<SpeechRow> rows;      ///< by bucket; behind them once more in the order of the draws
  std::vector<Part> parts;          ///< micro-batches in the order of use
  std::vector<Part> cut;            ///< ... in the order of `rows`
  std::vector<std::int64_t> ends;   ///< of each bucket in `rows`
  std::vector<std::int64_t> drawn;  ///< of each pool, the window included

  std::span<const SpeechRow> part(std::int64_t j) const {
    const Part& p = parts[static_cast<std::size_t>(j)];
    return std::span(rows).subspan(static_cast<std::size_t>(p.first),
                                   static_cast<std::size_t>(p.count));
  }
};

/// The draws of a blend are cut into windows of a fixed number of utterances. The utterances of a
/// window go to their buckets in the order of the draws; each bucket is cut into micro-batches as
/// long as they fit (SpeechBuckets), what remains of it at the end of the window being a smaller
/// one; the micro-batches of the window are put in the order of a keyed permutation of (seed,
/// window). So every draw is in exactly one micro-batch. The micro-batches of all windows, one
/// behind the other, are cut into steps of equal number.
class SpeechSampler {
 public:
  /// `window`: utterances of a window.
  SpeechSampler(SpeechBlend blend, SpeechBuckets buckets, std::int64_t window, std::uint64_t seed);

  const SpeechBlend& blend() const { return blend_; }
  const SpeechBuckets& buckets() const { return buckets_; }
  std::int64_t window() const { return window_; }
  SpeechCursor begin() const;
  /// Window `number`, before which `drawn` of each pool were drawn. O(window).
  void plan(std::int64_t number, std::span<const std::int64_t> drawn, SpeechWindow& to) const;
  /// Covers what cursors depend on: two samplers with equal hashes continue each other.
  std::uint64_t hash() const;

 private:
  void cut(SpeechWindow& window) const;

  SpeechBlend blend_;
  SpeechBuckets buckets_;
  std::int64_t window_;
  PhiloxKey order_key_;
};

/// Walks the steps. Used by one thread; allocates nothing after the first step.
class SpeechSteps {
 public:
  /// Throws DataError for a cursor beyond its window: it belongs to other data.
  SpeechSteps(const SpeechSampler& sampler, const SpeechCursor& from, std::int64_t micro_batches);
  /// The step at the cursor; moves on.
  void next(SpeechStep& step);

 private:
  void enter_window();

  const SpeechSampler& sampler_;
  std::int64_t micro_batches_;
  SpeechCursor at_;
  SpeechWindow window_;
};

/// Where step `step` of a run from the start begins. O(all draws before it), about half a second
/// for a million; a cursor needs none of it.
SpeechCursor seek_step(const SpeechSampler& sampler, std::int64_t step, std::int64_t micro_batches);

/// Share of samples that are padding.
struct SpeechPadding {
  double bucketed = 0;
  double naive = 0;  ///< in the order of the draws, by count, about as many in a micro-batch
  std::int64_t micro_batches = 0, naive_micro_batches = 0;
  double mean_utterances = 0;  ///< of a micro-batch
};
/// Looks at the first window.
SpeechPadding measure_padding(const SpeechSampler& sampler, const SpeechFrames& frames);

}  // namespace choir
