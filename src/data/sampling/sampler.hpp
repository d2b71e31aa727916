#pragma once
// The utterances of micro-batch j of step s, as a function of the seed, the data and a position of
// a few integers. It is the same for any number of ranks.

#include <cstdint>
#include <span>
#include <vector>

#include "src/data/sampling/blend.hpp"
#include "src/data/sampling/buckets.hpp"

namespace choir {

/// The start of a step.
struct SpeechCursor {
  std::int64_t window = 0;
  std::int64_t offset = 0;          ///< micro-batches of the window that are already used
  std::vector<std::int64_t> drawn;  ///< draws of each pool before the window
  friend bool operator==(const SpeechCursor&, const SpeechCursor&) = default;

  /// Conversion to and from the integers that a checkpoint stores. of_integers() throws DataError
  /// unless they belong to `pools` pools.
  std::vector<std::int64_t> to_integers() const;
  static SpeechCursor of_integers(std::span<const std::int64_t> integers, int pools);
};

/// The global micro-batches of a step.
struct SpeechStep {
  std::vector<SpeechRow> rows;
  std::vector<std::int64_t> begins;  ///< first row of each micro-batch, and the end
  SpeechCursor after;                ///< start of the next step
  std::int64_t targets = 0;          ///< number of labels of all rows

  std::int64_t micro_batches() const { return static_cast<std::int64_t>(begins.size()) - 1; }
  std::span<const SpeechRow> micro_batch(std::int64_t j) const {
    const auto first = static_cast<std::size_t>(begins[static_cast<std::size_t>(j)]);
    return std::span(rows).subspan(
        first, static_cast<std::size_t>(begins[static_cast<std::size_t>(j) + 1]) - first);
  }
};

/// The micro-batches of one window, with the working memory of their planning.
struct SpeechWindow {
  struct Part {
    std::int64_t first = 0, count = 0;
  };
  std::int64_t number = -1;
  std::vector<SpeechRow> rows;      ///< sorted by bucket, then in the order of the draws
  std::vector<Part> parts;          ///< micro-batches in the order of use
  std::vector<Part> cut;            ///< micro-batches in the order of `rows`
  std::vector<std::int64_t> ends;   ///< end of each bucket in `rows`
  std::vector<std::int64_t> drawn;  ///< draws of each pool, including the window

  std::span<const SpeechRow> part(std::int64_t j) const {
    const Part& p = parts[static_cast<std::size_t>(j)];
    return std::span(rows).subspan(static_cast<std::size_t>(p.first),
                                   static_cast<std::size_t>(p.count));
  }
};

/// Plans micro-batches. The draws of a blend are cut into windows of a fixed number of utterances.
/// The utterances of a window are distributed to their buckets in the order of the draws. Each
/// bucket is cut into micro-batches that hold as many utterances as fit (SpeechBuckets); the rest
/// of a bucket at the end of the window is a smaller micro-batch. A keyed permutation of (seed,
/// window) orders the micro-batches of the window. So every draw is in exactly one micro-batch. The
/// sequence of the micro-batches of all windows is cut into steps of equal number.
class SpeechSampler {
 public:
  /// `window` is the number of utterances in a window.
  SpeechSampler(SpeechBlend blend, SpeechBuckets buckets, std::int64_t window, std::uint64_t seed);

  const SpeechBlend& blend() const { return blend_; }
  const SpeechBuckets& buckets() const { return buckets_; }
  std::int64_t window() const { return window_; }
  SpeechCursor begin() const;
  /// Plans window `number`; `drawn` counts the draws of each pool before it. O(window).
  void plan(std::int64_t number, std::span<const std::int64_t> drawn, SpeechWindow& to) const;
  /// Hash of everything that cursors depend on: two samplers with equal hashes continue each other.
  std::uint64_t hash() const;

 private:
  void cut(SpeechWindow& window) const;

  SpeechBlend blend_;
  SpeechBuckets buckets_;
  std::int64_t window_;
  PhiloxKey order_key_;
};

/// Iterates over the steps. Used by one thread; allocates nothing after the first step.
class SpeechSteps {
 public:
  /// Throws DataError for a cursor beyond the end of its window, which belongs to other data.
  SpeechSteps(const SpeechSampler& sampler, const SpeechCursor& from, std::int64_t micro_batches);
  /// Returns the step at the cursor and advances it.
  void next(SpeechStep& step);

 private:
  void enter_window();

  const SpeechSampler& sampler_;
  std::int64_t micro_batches_;
  SpeechCursor at_;
  SpeechWindow window_;
};

/// The cursor of step `step` of a run that begins at the start. O(all draws before it), about half
/// a second for a million draws; resuming from a cursor avoids this.
SpeechCursor seek_step(const SpeechSampler& sampler, std::int64_t step, std::int64_t micro_batches);

/// Shares of samples that are padding.
struct SpeechPadding {
  double bucketed = 0;
  double naive = 0;  ///< padding of micro-batches in the order of the draws, of about the same
                     ///< number of utterances
  std::int64_t micro_batches = 0, naive_micro_batches = 0;
  double mean_utterances = 0;  ///< mean utterances of a micro-batch
};
/// Measures the first window.
SpeechPadding measure_padding(const SpeechSampler& sampler, const SpeechFrames& frames);

}  // namespace choir
