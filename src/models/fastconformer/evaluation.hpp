#pragma once
// Recognition of micro-batches, and the scores of whole validation sets.

#include <cstdint>
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
  /// stage's tensor axis have the results; other stages have none. The rows `without_loss`, which
  /// have no labels, add nothing to the loss.
  void run(const ModelBatch& batch, std::span<const std::int64_t> without_loss = {});

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
  std::vector<std::int32_t> best_, lengths_, loss_lengths_;
};

/// Loss, error rates of words and characters as counts over whole sets, and speed.
class SpeechMeaning final : public ScoreMeaning {
 public:
  explicit SpeechMeaning(int sample_rate) : sample_rate_(sample_rate) {}
  std::vector<ScoreCounter> counters() const override;
  std::string describe(const Scores& scores, Validation& to) const override;
  std::string describe_tag(const Scores& scores, const std::string& tag,
                           Validation& to) const override;

 private:
  int sample_rate_;
};

/// Greedy decoding: the best symbol of every frame, with repeats joined and blanks removed.
class SpeechScorer final : public SetScorer {
 public:
  /// Everything referred to must outlive this.
  SpeechScorer(ModelInstance& instance, SpeechData& data)
      : instance_(instance),
        data_(data),
        meaning_(data.set->sample_rate()),
        recogniser_(instance) {}
  const ScoreMeaning& meaning() const override { return meaning_; }
  int sets() const override { return data_.set->eval_sets(); }
  std::string name(int set) const override { return data_.set->eval_name(set); }
  std::int64_t calls(int set) const override { return data_.set->eval_calls(set); }
  std::vector<SampleTags> tags(int set) const override;
  void score(int set, std::int64_t call, SetSums& sums) override;
  Pairs pairs() const override { return {.answer = "hypothesis"}; }
  std::string place(int set, std::int32_t source, std::int32_t number) const override;

 private:
  ModelInstance& instance_;
  SpeechData& data_;
  SpeechMeaning meaning_;
  SpeechRecogniser recogniser_;
};

/// Local. A line about the texts of a validation set that the vocabulary cannot write, with the
/// command that writes them in another form; "" if there are none.
std::string unwritable_texts_of(const SpeechDataset& data, int set, const Vocabulary& vocabulary);

/// The text that the best symbols of frames spell.
std::string greedy_text(std::span<const std::int32_t> best, std::int64_t blank,
                        const Vocabulary& vocabulary);

}  // namespace choir
