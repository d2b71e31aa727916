#pragma once
// Which utterances of packed speech a run uses, and what became of the others: counted by reason,
// with an example of each, never silent. Pure.
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

/// 0: no bound.
struct SpeechFilter {
  double min_duration = 0, max_duration = 0;                    ///< seconds
  double min_labels_per_second = 0, max_labels_per_second = 0;  ///< labels are tokens, not letters
  bool ctc = true;  ///< false: labels are no targets of CTC, and need not fit the frames
};

enum class LeftOut {
  too_short,       ///< min_duration, or not one frame
  too_long,        ///< max_duration
  few_labels,      ///< min_labels_per_second
  many_labels,     ///< max_labels_per_second
  damaged,         ///< bad: its samples do not match their checksum
  bad_text,        ///< bad: characters outside the vocabulary
  ctc_impossible,  ///< bad: labels + equal neighbours among them > frames
};
inline constexpr int kLeftOutReasons = 7;
std::string_view name_of(LeftOut reason);

/// Frames that CTC needs for these labels: one each, and a blank between equal neighbours.
std::int64_t ctc_frames(std::span<const std::int32_t> labels);

class SpeechSift {
 public:
  /// `validation`: nothing is left out because CTC is impossible (it is counted all the same), as
  /// the error rate is over everything that was said.
  SpeechSift(const SpeechFilter& filter, const SpeechFrames& frames, bool validation);

  /// Adds what is to be used of a folder, in order, to `kept`. `damaged`: of each utterance, or
  /// empty.
  void add(int leaf, const AudioCatalog& catalog, const LabelFile& labels,
           std::span<const std::int32_t> damaged, std::vector<SpeechItem>& kept);
  /// Throws DataError for bad ones that `on_bad` does not allow: any with stop, more than `cap` of
  /// all with skip; and where nothing is left.
  void require(OnBad on_bad, double cap, const std::string& what) const;

  std::int64_t count(LeftOut reason) const {
    return counts_[static_cast<std::size_t>(reason)].utterances;
  }
  std::int64_t total() const { return total_; }
  std::int64_t kept() const { return kept_; }
  std::int64_t bad() const;
  double hours() const { return seconds_ / 3600; }  ///< of those kept
  /// A line for what is kept, one for each reason with its count, hours and first example, and,
  /// where CTC is impossible for some, what cures it.
  std::string to_string() const;

 private:
  struct Count {
    std::int64_t utterances = 0;
    double seconds = 0;
    std::string first;
  };
  /// True where it is to be used.
  bool judge(const AudioCatalog& catalog, const LabelFile& labels, std::int64_t i, bool damaged);
  void leave_out(LeftOut reason, const AudioCatalog& catalog, std::int64_t i,
                 const std::string& detail = {});
  std::string cure() const;
  std::string bad_ones() const;

  SpeechFilter filter_;
  SpeechFrames frames_;
  bool validation_;
  std::array<Count, kLeftOutReasons> counts_{};
  std::array<std::int64_t, 4> impossible_{};  // with so many halvings of time
  std::int64_t total_ = 0, kept_ = 0;
  double seconds_ = 0;
};

}  // namespace choir
