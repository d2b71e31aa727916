#pragma once
// Decoding of CTC output: label sequences with times from the frames of a model. Pure functions on
// host memory; the blank is the last symbol.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace choir {

/// A label and the frames that emit it: the first and the last of its run.
struct TimedLabel {
  std::int32_t label = 0;
  std::int64_t first = 0, last = 0;
  friend bool operator==(const TimedLabel&, const TimedLabel&) = default;
};

struct CtcHypothesis {
  std::vector<TimedLabel> labels;
  double log_probability = 0;  ///< sum over the paths that the search kept
  std::vector<std::int32_t> ids() const;
};

/// Greedy decoding, frame by frame: takes the best symbol of every frame, merges repeats and drops
/// blanks.
class CtcCollapse {
 public:
  explicit CtcCollapse(std::int32_t blank) : blank_(blank), before_(blank) {}
  void frame(std::int32_t best);
  const std::vector<TimedLabel>& labels() const { return labels_; }

 private:
  std::int32_t blank_, before_;
  std::int64_t frames_ = 0;
  std::vector<TimedLabel> labels_;
};
/// Greedy decoding of all frames at once.
std::vector<TimedLabel> ctc_collapse(std::span<const std::int32_t> best, std::int32_t blank);

struct CtcBeamSearch {
  std::int64_t beam = 16;  ///< prefixes kept after each frame
  std::int64_t best = 1;   ///< hypotheses returned, at most `beam`
  /// Minimum log-probability (natural logarithm): a symbol below it extends no prefix in that
  /// frame. With -infinity every symbol does.
  double least = -20;
  /// Number of prefixes and times after which the search discards those that no prefix of the beam
  /// descends from, so memory grows with the labels, not with the frames. It changes no result.
  std::int64_t remembered = 1 << 16;
};
/// Prefix beam search (Hannun et al. 2014, "First-pass large vocabulary continuous speech
/// recognition using bi-directional recurrent DNNs", algorithm 1, without language model). The
/// probability of a prefix is the sum over all its paths; paths that end in blank and paths that
/// end in a label are summed separately. `log_probabilities` [frames, vocabulary]; the blank is
/// vocabulary - 1. The best hypothesis comes first; ties are resolved by length (shorter first),
/// then by labels (lower first). Times are those of the most likely kept path of a prefix.
std::vector<CtcHypothesis> ctc_beam_search(std::span<const float> log_probabilities,
                                           std::int64_t vocabulary, const CtcBeamSearch& options);

/// Prefix beam search, frame by frame.
class CtcBeam {
 public:
  CtcBeam(std::int64_t vocabulary, const CtcBeamSearch& options);
  ~CtcBeam();
  CtcBeam(CtcBeam&&) noexcept;
  CtcBeam& operator=(CtcBeam&&) noexcept;
  /// `log_probabilities` [vocabulary] of the next frame.
  void frame(std::span<const float> log_probabilities);
  std::vector<CtcHypothesis> results() const;

 private:
  class Search;
  std::unique_ptr<Search> search_;
};

/// A word of the text that a sequence of labels spells.
struct TimedWord {
  std::string text;
  std::int64_t first = 0, last = 0;  ///< frames of its first and last label
  friend bool operator==(const TimedWord&, const TimedWord&) = default;
};
/// pieces[i] is the UTF-8 text that label i appends; a space in it separates words (SentencePiece's
/// U+2581 must be given as a space).
std::vector<TimedWord> timed_words(std::span<const TimedLabel> labels,
                                   std::span<const std::string> pieces);

}  // namespace choir
