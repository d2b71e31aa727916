#pragma once
// Utterances of about one length go together, so that little of a micro-batch is padding. Pure.
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace choir {

struct SpeechFrames {
  std::int64_t hop = 160;  ///< samples between frames of features
  int stages = 3;          ///< halvings of time by the encoder
  bool causal = false;     ///< a halving of n > 0 frames gives n / 2 + 1, else ceil(n / 2)
  /// So many frames stand together in a row of a language model; the last one has what is left.
  std::int64_t stack = 1;

  /// Frames that count after `stage` halvings (0: of the features, samples / hop).
  std::int64_t after(int stage, std::int64_t samples) const {
    std::int64_t n = samples / hop;
    for (int k = 0; k < stage; ++k) n = n == 0 ? 0 : causal ? n / 2 + 1 : (n + 1) / 2;
    return n;
  }
  std::int64_t frames(std::int64_t samples) const { return after(stages, samples); }
  std::int64_t rows(std::int64_t samples) const { return (frames(samples) + stack - 1) / stack; }
  /// What padded lengths are multiples of.
  std::int64_t multiple() const { return hop << stages; }
  std::int64_t padded(std::int64_t samples) const {
    const std::int64_t m = multiple();
    return samples <= m ? m : (samples + m - 1) / m * m;
  }
};

/// Upper edges, inclusive.
struct SpeechBin {
  double seconds = 0;
  std::int64_t labels = std::numeric_limits<std::int64_t>::max();
  friend bool operator==(const SpeechBin&, const SpeechBin&) = default;
};

struct SpeechBucketOptions {
  double batch_duration = 60;     ///< seconds
  double quadratic_duration = 0;  ///< seconds; 0: no penalty
  std::int64_t max_samples = 0;   ///< utterances in a micro-batch; 0: any number
  /// With 16 buckets a twentieth to a tenth is padding, with 8 a tenth or more.
  std::int64_t buckets = 16;       ///< estimated, by duration ...
  std::int64_t label_buckets = 1;  ///< ... each parted into so many by labels
  /// Ascending by duration, those of equal duration by labels. Empty: estimated, so that each holds
  /// an equal share of the total duration.
  std::vector<SpeechBin> bins;
  /// Utterances in a micro-batch of each of `bins`, as the tuner finds them; empty: by duration
  /// alone.
  std::vector<std::int64_t> sizes;
  /// All micro-batches of a bucket have one shape: each is cut and padded as if its longest
  /// utterance were that of the bucket.
  bool whole = false;
};

struct SpeechLength {
  std::int64_t samples = 0, labels = 0;
  double weight = 1;  ///< how often it is drawn, relative to others
};

/// No micro-batch is larger than one of these in all three. S is a padded length.
struct SpeechShape {
  std::int64_t utterances = 0, samples = 0, labels = 0;  ///< B, S, U
  friend bool operator==(const SpeechShape&, const SpeechShape&) = default;
};

/// A bucket holds utterances up to an upper edge of duration (1D), or of duration and of labels
/// (2D); a micro-batch takes utterances of one bucket while
///   n * effective(longest of them) <= batch_duration, effective(d) = d + d^2 / quadratic_duration,
/// n <= max_samples and, where given, n <= size of the bucket. With `whole` the longest of them is
/// that of the bucket.
class SpeechBuckets {
 public:
  /// Throws DeckError: bins that do not ascend, sizes that are not one a bin, numbers out of range;
  /// a single utterance of `lengths` larger than batch_duration or, with sizes, than the last bin.
  SpeechBuckets(const SpeechBucketOptions& options, int sample_rate,
                std::span<const SpeechLength> lengths);

  int count() const { return static_cast<int>(bins_.size()); }
  const SpeechBin& bin(int bucket) const { return bins_[static_cast<std::size_t>(bucket)]; }
  /// The first bin of durations that holds it (the last holds all beyond), therein the first of
  /// labels.
  int of(std::int64_t samples, std::int64_t labels) const;
  double effective(std::int64_t samples) const;
  /// Whether `n` utterances of the bucket, the longest of `samples`, may be one micro-batch.
  bool fits(int bucket, std::int64_t n, std::int64_t samples) const;
  /// The largest n that fits; at least 1.
  std::int64_t limit(int bucket, std::int64_t samples) const;

  /// What micro-batches of such utterances can be at most: for each bucket its longest utterance as
  /// often as it fits, then, unless buckets are whole, more and shorter ones, with B in steps of a
  /// sixteenth.
  std::vector<SpeechShape> shapes(std::span<const SpeechLength> lengths,
                                  const SpeechFrames& frames) const;
  std::string to_string() const;

 private:
  void estimate(std::span<const SpeechLength> lengths);
  void check_lengths(std::span<const SpeechLength> lengths) const;
  /// The length that an utterance of the bucket stands for.
  std::int64_t counted(int bucket, std::int64_t samples) const;

  SpeechBucketOptions options_;
  double sample_rate_;
  std::vector<SpeechBin> bins_;
  std::vector<std::int64_t> edges_;    ///< of bins_, in samples
  std::vector<std::int64_t> longest_;  ///< utterance of each, in samples; where buckets are whole
};

}  // namespace choir
