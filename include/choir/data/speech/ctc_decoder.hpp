#pragma once
// From the frames of a CTC model to label sequences and times. Pure functions on host memory; blank
// is the last symbol.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace choir {

/// A label and the frames in which it was heard: first and last of its run.
struct TimedLabel {
  std::int32_t label = 0;
  std::int64_t first = 0, last = 0;
  friend bool operator==(const TimedLabel&, const TimedLabel&) = default;
};

struct CtcHypothesis {
  std::vector<TimedLabel> labels;
  double log_probability = 0;  ///< of the labels, over the paths that the search kept
  std::vector<std::int32_t> ids() const;
};

/// The best symbol of every frame with repeats joined and blanks left out, frame by frame.
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
/// The same for all frames at once.
std::vector<TimedLabel> ctc_collapse(std::span<const std::int32_t> best, std::int32_t blank);

struct CtcBeamSearch {
  std::int64_t beam = 16;  ///< prefixes kept after each frame
  std::int64_t best = 1;   ///< hypotheses returned, at most `beam`
  /// Symbols less likely than this in a frame extend nothing there (ln; -infinity: all do).
  double least = -20;
  /// Prefixes and times remembered before those are forgotten that no prefix of the beam comes
  /// from: memory is that of the labels, not of the frames. Changes no result.
  std::int64_t remembered = 1 << 16;
};
/// Prefix beam search (Hannun et al. 2014, "First-pass large vocabulary continuous speech
/// recognition using bi-directional recurrent DNNs", algorithm 1, without language model): a prefix
/// has the probabilities of its paths that end in blank and of those that do not; both are added
/// over all paths. `log_probabilities` [frames, vocabulary]; blank is vocabulary - 1. Best first;
/// of equals the shorter, then the lower labels first. Times are those of the likeliest kept path
/// of the prefix.
std::vector<CtcHypothesis> ctc_beam_search(std::span<const float> log_probabilities,
                                           std::int64_t vocabulary, const CtcBeamSearch& options);

/// The same frame by frame.
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

/// Words of a text that labels spell: pieces[i] is what label i adds to the text, UTF-8; a space in
/// it divides words (of SentencePiece: U+2581 written as a space).
struct TimedWord {
  std::string text;
  std::int64_t first = 0, last = 0;  ///< frames of its first and last label
  friend bool operator==(const TimedWord&, const TimedWord&) = default;
};
std::vector<TimedWord> timed_words(std::span<const TimedLabel> labels,
                                   std::span<const std::string> pieces);

}  // namespace choir
