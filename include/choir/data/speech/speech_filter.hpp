#pragma once
// Selection of the utterances that a run uses. Utterances left out are counted by reason, with an
// example of each, and always reported. Pure.
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "choir/data/audio/audio_catalog.hpp"
#include "choir/data/audio/audio_error.hpp"
#include "choir/data/speech/label_file.hpp"
#include "choir/data/speech/speech_blend.hpp"
#include "choir/data/speech/speech_buckets.hpp"

namespace choir {

/// Bounds on utterances; 0 is no bound.
struct SpeechFilter {
  double min_duration = 0, max_duration = 0;                    ///< seconds
  double min_labels_per_second = 0, max_labels_per_second = 0;  ///< tokens, not characters
  bool ctc = true;  ///< if false, labels are no CTC targets and need not fit the frames
};

enum class LeftOut {
  too_short,       ///< below min_duration, or shorter than a frame
  too_long,        ///< above max_duration
  few_labels,      ///< below min_labels_per_second
  many_labels,     ///< above max_labels_per_second
  damaged,         ///< bad: the samples do not match their checksum
  bad_text,        ///< bad: the text has characters outside the vocabulary
  ctc_impossible,  ///< bad: labels + repeated neighbours among them > frames
};
inline constexpr int kLeftOutReasons = 7;
std::string_view name_of(LeftOut reason);

/// Number of frames that CTC needs for these labels: one per label, and a blank between equal
/// neighbours.
std::int64_t ctc_frames(std::span<const std::int32_t> labels);

class SpeechSift {
 public:
  /// With `validation`, an utterance for which CTC is impossible is counted but kept, because the
  /// error rate covers every utterance.
  SpeechSift(const SpeechFilter& filter, const SpeechFrames& frames, bool validation);

  /// Appends the utterances of a folder that pass, in order, to `kept`. `damaged` has an entry per
  /// utterance, or is empty.
  void add(int leaf, const AudioCatalog& catalog, const LabelFile& labels,
           std::span<const std::int32_t> damaged, std::vector<SpeechItem>& kept);
  /// Throws DataError if `on_bad` does not allow the bad utterances (OnBad::stop allows none,
  /// OnBad::skip a share of `cap`), and if no utterance is left.
  void require(OnBad on_bad, double cap, const std::string& what) const;

  std::int64_t count(LeftOut reason) const {
    return counts_[static_cast<std::size_t>(reason)].utterances;
  }
  std::int64_t total() const { return total_; }
  std::int64_t kept() const { return kept_; }
  std::int64_t bad() const;
  double hours() const { return seconds_ / 3600; }  ///< hours of the utterances that are kept
  /// A line about the utterances kept, a line per reason with its count, hours and first example,
  /// and a remedy if CTC is impossible for some utterances.
  std::string to_string() const;

 private:
  struct Count {
    std::int64_t utterances = 0;
    double seconds = 0;
    std::string first;
  };
  /// True if the utterance is used.
  bool judge(const AudioCatalog& catalog, const LabelFile& labels, std::int64_t i, bool damaged);
  void leave_out(LeftOut reason, const AudioCatalog& catalog, std::int64_t i,
                 const std::string& detail = {});
  std::string cure() const;
  std::string bad_ones() const;

  SpeechFilter filter_;
  SpeechFrames frames_;
  bool validation_;
  std::array<Count, kLeftOutReasons> counts_{};
  std::array<std::int64_t, 4> impossible_{};  // for each number of halvings of time
  std::int64_t total_ = 0, kept_ = 0;
  double seconds_ = 0;
};

}  // namespace choir
