#pragma once
// Opened folders of packed speech: the location of every utterance, its labels, and the selection
// of the utterances that a run uses. Utterances left out are counted by reason, with an example of
// each, and always reported.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "src/data/audio/audio_error.hpp"
#include "src/data/audio/packed_audio.hpp"
#include "src/data/sampling/blend.hpp"
#include "src/data/sampling/buckets.hpp"
#include "src/data/sampling/mix.hpp"
#include "src/data/speech/label_file.hpp"
#include "src/data/text/token_reader.hpp"
#include "src/data/text/token_stream.hpp"

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
  bad_text,        ///< bad: the text has characters outside the vocabulary, so it has no labels
  ctc_impossible,  ///< bad: labels + repeated neighbours among them > frames
};
inline constexpr std::array kLeftOutReasons{
    LeftOut::too_short, LeftOut::too_long, LeftOut::few_labels,    LeftOut::many_labels,
    LeftOut::damaged,   LeftOut::bad_text, LeftOut::ctc_impossible};
std::string_view name_of(LeftOut reason);

class SpeechSift {
 public:
  /// With `validation`, utterances without labels, and those for which CTC is impossible, are
  /// counted but kept, because the error rate compares the texts of all utterances.
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
  /// A line with the count, hours and first examples of a reason; "" if it has no utterance.
  std::string line_of(LeftOut reason) const;
  /// The cause and the remedies if CTC is impossible for some utterances; else "".
  std::string ctc_remedy() const;
  /// A line about the utterances kept, the line of each reason, and the remedy of CTC.
  std::string to_string() const;

 private:
  struct Count {
    std::int64_t utterances = 0;
    double seconds = 0;
    std::vector<std::string> first;  // at most three
  };
  /// True for a reason that keeps utterances of validation data.
  bool keeps(LeftOut reason) const;
  /// True for a reason that is a fault of the data, and not a wish of the user.
  bool is_bad(LeftOut reason) const;
  /// True if the utterance is used.
  bool judge(const AudioCatalog& catalog, const LabelFile& labels, std::int64_t i, bool damaged);
  void leave_out(LeftOut reason, const AudioCatalog& catalog, std::int64_t i,
                 const std::string& detail = {});
  std::string bad_ones() const;

  SpeechFilter filter_;
  SpeechFrames frames_;
  bool validation_;
  std::array<Count, kLeftOutReasons.size()> counts_{};
  std::array<std::int64_t, 4> impossible_{};  // for each number of halvings of time
  std::int64_t total_ = 0, kept_ = 0;
  double seconds_ = 0;
};

struct SpeechCorpusOptions {
  std::string labels;  ///< NAME of labels.NAME.bin; "": no labels are read
  /// Name that is taken instead where a folder has labels of it, see own_labels_name(); "": none.
  std::string own_labels;
  /// Makes the labels of a folder that has none in the units of `tokenizer_hash`, in memory, for
  /// training or for validation; empty: such a folder is refused.
  std::function<LabelFile(const AudioCatalog&, bool validation)> make_labels;
  int sample_rate = 0;  ///< sample rate of the model; 0: any rate that all folders share
  std::uint64_t tokenizer_hash = 0;  ///< tokenizer of the model; 0: any that all folders share
  SpeechFrames frames;
  SpeechFilter filter;
  bool validation = false;  ///< see SpeechSift; the corpus keeps the texts
  OnBad on_bad = OnBad::stop;
  double bad_cap = 0.01;  ///< largest share of bad utterances
  /// Folders with up to this many bytes of audio have the checksums of all utterances verified when
  /// they are opened, by all ranks together. In larger folders damage is detected when it is read.
  std::int64_t verify_bytes = std::int64_t{1} << 30;
  std::string what = "the training data";
};

class SpeechCorpus {
 public:
  /// Collective over `comm`, and over `peers` if given, whose rank 0 reads for the others. A single
  /// rank accesses the file system. All ranks get the same corpus. Throws DataError on all ranks
  /// (files, rates, vocabularies, bad utterances, no utterance left).
  static SpeechCorpus load(Communicator& comm, Communicator* peers,
                           const std::vector<SpeechLeaf>& leaves,
                           const SpeechCorpusOptions& options);

  int folders() const { return static_cast<int>(folders_.size()); }
  const AudioCatalog& catalog(int leaf) const { return at(leaf).catalog; }
  const std::vector<SpeechItem>& items(int leaf) const { return at(leaf).items; }
  const SpeechSift& sift() const { return sift_; }
  int sample_rate() const { return folders_.front().catalog.sample_rate(); }
  std::int64_t vocab_size() const { return folders_.front().labels.vocab_size(); }
  std::uint64_t tokenizer_hash() const { return folders_.front().labels.tokenizer_hash(); }
  std::int64_t utterances() const {
    return utterances_;
  }  ///< utterances of all folders, used or not

  /// All shards as a stream of 16-bit items.
  const TokenStream& audio() const { return audio_; }
  TokenExtent extent(const SpeechItem& item) const;
  std::uint32_t crc(const SpeechItem& item) const;
  std::span<const std::int32_t> labels(const SpeechItem& item) const;
  /// False if the text has characters outside the vocabulary; validation only.
  bool has_labels(const SpeechItem& item) const;
  /// Index of an utterance among the utterances of all folders.
  std::int64_t number(const SpeechItem& item) const { return at(item.leaf).first + item.utterance; }
  /// "utterance 7 of 'data/a' (data/a/audio_00000.pcm, samples 64 to 16064)"
  std::string place_of(const SpeechItem& item) const;
  /// The reference text; validation only.
  const std::string& text(const SpeechItem& item) const;

 private:
  struct Folder {
    AudioCatalog catalog;
    LabelFile labels;
    std::vector<std::string> texts;
    std::vector<SpeechItem> items;
    std::int64_t first = 0;      // index of its first utterance among all folders
    std::size_t first_file = 0;  // index of its first shard in the stream
  };
  SpeechCorpus() : sift_({}, {}, false) {}
  const Folder& at(int leaf) const { return folders_[static_cast<std::size_t>(leaf)]; }
  void rebuild(const std::string& image);
  std::vector<std::int32_t> find_damage(Communicator& comm, std::int64_t verify_bytes) const;
  void check(const SpeechCorpusOptions& options) const;

  std::vector<Folder> folders_;
  TokenStream audio_;
  SpeechSift sift_;
  std::int64_t utterances_ = 0;
};

}  // namespace choir
