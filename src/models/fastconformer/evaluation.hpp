#pragma once
// Recognition of micro-batches, and the scores of whole validation sets.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "choir/core/log.hpp"
#include "choir/run/model_instance.hpp"
#include "choir/run/training_data.hpp"
#include "src/data/metrics/edit_distance.hpp"
#include "src/models/fastconformer/speech_data.hpp"

namespace choir {

/// The results of a speech model for a micro-batch in one pass: the best symbol of every frame, and
/// the loss where labels are known.
class SpeechRecogniser {
 public:
  /// Everything referred to must outlive this.
  explicit SpeechRecogniser(ModelInstance& instance) : instance_(instance) {}

  /// Collective like ModelInstance::forward(); the batch is in host memory. All ranks of the last
  /// stage's tensor axis have the results; other stages have none.
  void run(const ModelBatch& batch);

  bool has_result() const { return frames_ > 0; }
  /// Sum of the losses of the batch; an utterance that CTC cannot spell counts as 0.
  double loss_sum() const { return loss_sum_; }
  /// The best symbols of a row's frames without padding; the blank is the vocabulary size.
  std::span<const std::int32_t> best(std::int64_t row) const;

 private:
  Tensor on_device(const TensorView& host);

  ModelInstance& instance_;
  std::int64_t frames_ = 0;  ///< of the padded batch
  double loss_sum_ = 0;
  std::vector<std::int32_t> best_, lengths_;
};

// Scores of validation sets: loss, error rates of words and characters as counts over whole sets,
// speed, and pairs of reference and hypothesis for users.

/// The scores of one set or several; all members except `seconds` are sums over utterances of all
/// ranks.
struct SpeechScores {
  double loss = 0;  ///< sum
  std::int64_t targets = 0;
  EditCounts words, characters;
  double audio_seconds = 0,
         seconds = 0;  ///< duration of the audio, and the wall time of its recognition

  double mean_loss() const { return loss / static_cast<double>(targets); }
  /// Wall time divided by the duration of the audio; below 1 is faster than real time.
  double real_time_factor() const { return audio_seconds > 0 ? seconds / audio_seconds : 0; }
  SpeechScores& operator+=(const SpeechScores& other);
  /// "loss 1.2345, WER 4.31 % (...), CER 1.20 % (...), real-time factor 0.0012"
  std::string to_string() const;
  /// The scores under the names of metrics.
  Validation validation(const std::string& name) const;
};

/// A reference transcript and the model's hypothesis.
struct HeardPair {
  std::uint64_t key = 0;  ///< the pairs with the smallest keys are shown
  std::string reference, hypothesis;
};

/// The scores of the utterances whose source has a tag. (They include no loss, because sources
/// share micro-batches.)
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
/// Collective over the mesh of the instance, with the same result on every rank. Greedy decoding:
/// the best symbol of every frame, with repeats joined and blanks removed. The micro-batches and
/// the order of sums do not depend on the number of ranks.
SetScores score_set(ModelInstance& instance, SpeechData& data, int set, std::size_t pairs,
                    ProgressLine* progress = nullptr);

/// The scores of all sets; pairs only of the first.
std::vector<SetScores> score_sets(ModelInstance& instance, SpeechData& data, std::size_t pairs,
                                  ProgressLine* progress = nullptr);
/// All sets together under the name "" first, then, if there are several, each of them. They
/// include the rates of each tag as "wer/NAME=VALUE", in a set only if the tag applies to a part of
/// it.
std::vector<Validation> validations_of(const std::vector<SetScores>& sets);
/// The same, formatted for users.
std::vector<std::string> lines_of(const std::vector<SetScores>& sets);
/// "  reference   ...\n  hypothesis  ..." for each pair.
std::string to_string(const std::vector<HeardPair>& pairs);

/// The text that the best symbols of frames spell.
std::string greedy_text(std::span<const std::int32_t> best, std::int64_t blank,
                        const Vocabulary& vocabulary);

}  // namespace choir
