#pragma once
// Buckets of utterances of similar length, which keep the padding of micro-batches small. Pure.

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
  /// Number of consecutive frames that are stacked into a row of a language model; the last row of
  /// an utterance may have fewer.
  std::int64_t stack = 1;

  /// Valid frames after `stage` halvings (0: frames of the features, samples / hop).
  std::int64_t after(int stage, std::int64_t samples) const {
    std::int64_t n = samples / hop;
    for (int k = 0; k < stage; ++k) n = n == 0 ? 0 : causal ? n / 2 + 1 : (n + 1) / 2;
    return n;
  }
  std::int64_t frames(std::int64_t samples) const { return after(stages, samples); }
  std::int64_t rows(std::int64_t samples) const { return (frames(samples) + stack - 1) / stack; }
  /// Padded lengths are multiples of this.
  std::int64_t multiple() const { return hop << stages; }
  std::int64_t padded(std::int64_t samples) const {
    const std::int64_t m = multiple();
    return samples <= m ? m : (samples + m - 1) / m * m;
  }
};

/// Number of frames that CTC needs for these labels: one per label, and a blank between equal
/// neighbours.
std::int64_t ctc_frames(std::span<const std::int32_t> labels);

/// Upper edges of a bucket, inclusive.
struct SpeechBin {
  double seconds = 0;
  std::int64_t labels = std::numeric_limits<std::int64_t>::max();
  friend bool operator==(const SpeechBin&, const SpeechBin&) = default;
};

struct SpeechBucketOptions {
  double batch_duration = 60;     ///< seconds
  double quadratic_duration = 0;  ///< seconds; 0: no penalty
  std::int64_t max_samples = 0;   ///< utterances in a micro-batch; 0: any number
  /// With 16 buckets 5 to 10 % of a micro-batch is padding, with 8 buckets 10 % or more.
  std::int64_t buckets = 16;       ///< number of estimated buckets by duration ...
  std::int64_t label_buckets = 1;  ///< ... each of which is divided into this number by labels
  /// Bins in ascending order of duration, then of labels. If empty, the edges are estimated so that
  /// each bucket holds an equal share of the total duration.
  std::vector<SpeechBin> bins;
  /// Micro-batch sizes in utterances, one for each of `bins`, as the tuner determines them. If
  /// empty, only the duration limits a micro-batch.
  std::vector<std::int64_t> sizes;
  /// If true, all micro-batches of a bucket have one shape: each is cut and padded as if it
  /// contained the longest utterance of the bucket.
  bool whole = false;
};

struct SpeechLength {
  std::int64_t samples = 0, labels = 0;
  double weight = 1;  ///< relative frequency of being drawn
};

/// Upper bound of a micro-batch: no dimension of a micro-batch is larger. S is a padded length.
struct SpeechShape {
  std::int64_t utterances = 0, samples = 0, labels = 0;  ///< B, S, U
  friend bool operator==(const SpeechShape&, const SpeechShape&) = default;
};

/// A bucket holds utterances up to an upper edge of duration (1D), or of duration and of labels
/// (2D). A micro-batch takes utterances of one bucket while
///   n * effective(longest of them) <= batch_duration, effective(d) = d + d^2 / quadratic_duration,
/// n <= max_samples and, if sizes are given, n <= size of the bucket. With `whole`, the longest
/// utterance of the bucket replaces the longest of the micro-batch.
class SpeechBuckets {
 public:
  /// Throws DeckError for bins that do not ascend, a number of sizes other than the number of bins,
  /// values out of range, and if a single utterance of `lengths` exceeds batch_duration or, with
  /// sizes, the last bin.
  SpeechBuckets(const SpeechBucketOptions& options, int sample_rate,
                std::span<const SpeechLength> lengths);

  int count() const { return static_cast<int>(bins_.size()); }
  const SpeechBin& bin(int bucket) const { return bins_[static_cast<std::size_t>(bucket)]; }
  /// Index of the bucket: the first bin whose duration edge holds the utterance (the last bin holds
  /// all longer ones), and among bins of that duration the first whose label edge does.
  int of(std::int64_t samples, std::int64_t labels) const;
  double effective(std::int64_t samples) const;
  /// True if `n` utterances of the bucket, the longest with `samples` samples, fit into one
  /// micro-batch.
  bool fits(int bucket, std::int64_t n, std::int64_t samples) const;
  /// The largest n that fits; at least 1.
  std::int64_t limit(int bucket, std::int64_t samples) const;

  /// Upper bounds of all micro-batches of such utterances. Each bucket contributes its longest
  /// utterance as often as it fits and, unless buckets are whole, shapes with more and shorter
  /// utterances, with B in steps of a sixteenth.
  std::vector<SpeechShape> shapes(std::span<const SpeechLength> lengths,
                                  const SpeechFrames& frames) const;
  std::string to_string() const;

 private:
  void estimate(std::span<const SpeechLength> lengths);
  void check_lengths(std::span<const SpeechLength> lengths) const;
  /// The length in samples that limits count for an utterance of the bucket.
  std::int64_t counted(int bucket, std::int64_t samples) const;

  SpeechBucketOptions options_;
  double sample_rate_;
  std::vector<SpeechBin> bins_;
  std::vector<std::int64_t> edges_;    ///< duration edges of bins_ in samples
  std::vector<std::int64_t> longest_;  ///< longest utterance of each bucket if they are whole
};

}  // namespace choir
