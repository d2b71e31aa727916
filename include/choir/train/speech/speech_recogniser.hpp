#pragma once
// What a speech model makes of a micro-batch in one pass: the best symbol of every frame, and the
// loss where labels are known.
#include <cstdint>
#include <span>
#include <vector>

#include "choir/train/engine/model_instance.hpp"

namespace choir {

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

}  // namespace choir
