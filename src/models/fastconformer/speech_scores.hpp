#pragma once
// How well a model hears: what it makes of a micro-batch, and the scores of whole validation sets.
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "choir/core/progress_line.hpp"
#include "choir/data/speech/edit_distance.hpp"
#include "choir/infer/model_instance.hpp"
#include "choir/models/fastconformer/speech_data.hpp"
#include "choir/train/step/training_data.hpp"

namespace choir {

/// What a speech model makes of a micro-batch in one pass: the best symbol of every frame, and the
/// loss where labels are known.
class SpeechRecogniser {
 public:
  /// Everything referred to must outlive this.
  explicit SpeechRecogniser(ModelInstance& instance) : instance_(instance) {}

  /// Collective as ModelInstance::forward(); the batch is in host memory. The results are those of
  /// the last stage, on every rank of its tensor axis; on other stages there are none.
  void run(const ModelBatch& batch);

  bool has_result() const { return frames_ > 0; }
  /// Sum of the losses of the batch; that of an utterance that CTC cannot spell is 0.
  double loss_sum() const { return loss_sum_; }
  /// The best symbols of the frames of a row that count; the blank is the vocabulary size.
  std::span<const std::int32_t> best(std::int64_t row) const;

 private:
  Tensor on_device(const TensorView& host);

  ModelInstance& instance_;
  std::int64_t frames_ = 0;  ///< of the padded batch
  double loss_sum_ = 0;
  std::vector<std::int32_t> best_, lengths_;
};

// How well a model hears validation sets: loss, error rates of words and characters as counts over
// whole sets, speed, and pairs of reference and hypothesis for people.

/// The scores of one set or several; all members but seconds are sums over utterances of all ranks.
struct SpeechScores {
  double loss = 0;  ///< sum
  std::int64_t targets = 0;
  EditCounts words, characters;
  double audio_seconds = 0, seconds = 0;  ///< heard, and the wall time it took

  double mean_loss() const { return loss / static_cast<double>(targets); }
  /// Wall time by duration of what was heard; below 1 is faster than real time.
  double real_time_factor() const { return audio_seconds > 0 ? seconds / audio_seconds : 0; }
  SpeechScores& operator+=(const SpeechScores& other);
  /// "loss 1.2345, WER 4.31 % (...), CER 1.20 % (...), real-time factor 0.0012"
  std::string to_string() const;
  /// With the name that metrics have.
  Validation validation(const std::string& name) const;
};

/// What was said and what was heard.
struct HeardPair {
  std::uint64_t key = 0;  ///< pairs are chosen by the smallest
  std::string reference, hypothesis;
};

/// The scores of the utterances whose source has a tag. (Losses are of micro-batches, which sources
/// share.)
struct TagScores {
  EditCounts words, characters;
  TagScores& operator+=(const TagScores& other);
};

struct SetScores {
  std::string name;
  SpeechScores scores;
  std::vector<HeardPair> pairs;             ///< on rank 0; the same utterances every time
  std::map<std::string, TagScores> tags{};  ///< by "NAME=VALUE"
};
/// Collective over the mesh of the instance, the same on every rank. Greedy decoding: the best
/// symbol of every frame, repeats joined, blanks left out. A set is evaluated in the same
/// micro-batches on any number of ranks, and the order of sums is theirs.
SetScores score_set(ModelInstance& instance, SpeechData& data, int set, std::size_t pairs,
                    ProgressLine* progress = nullptr);

/// All of the sets; pairs of the first.
std::vector<SetScores> score_sets(ModelInstance& instance, SpeechData& data, std::size_t pairs,
                                  ProgressLine* progress = nullptr);
/// All together under the name "" first, then, where there are several, each. With the rates of
/// each tag, as "wer/NAME=VALUE"; of a set only where the tag has a part of it.
std::vector<Validation> validations_of(const std::vector<SetScores>& sets);
/// The same, formatted for people.
std::vector<std::string> lines_of(const std::vector<SetScores>& sets);
/// "  reference   ...\n  hypothesis  ..." each.
std::string to_string(const std::vector<HeardPair>& pairs);

/// The text that the best symbols of frames spell.
std::string greedy_text(std::span<const std::int32_t> best, std::int64_t blank,
                        const Vocabulary& vocabulary);

}  // namespace choir
