#include "src/models/duplex/duplex_batches.hpp"

namespace choir {

DuplexBatches::DuplexBatches(const DuplexConfig& config, const DialogueControls& controls)
    : config_(config), controls_(controls) {}

ModelBatch DuplexBatches::of(const DialogueBatch& batch) {
  const SpeechBatch& user = *batch.user;
  const auto cells = static_cast<std::size_t>(batch.rows * batch.frames);
  frames_.resize(cells);
  weights_.resize(cells);
  ModelBatch result = duplex_fields(
      config_,
      {.samples = batch.rows, .tokens = batch.frames, .audio_samples = user.audio.shape[1]});
  result["audio"] = user.audio;
  result["audio_lengths"] = user.audio_lengths;
  result["frame_lengths"] = user.frame_lengths;
  result["sample_ids"] = result["dialogue_ids"] = user.sample_ids;
  result["text"] = batch.text;
  result["text_targets"] = batch.text_targets;
  result["codes"] = batch.codes;
  result["code_targets"] = batch.code_targets;
  result["frames"].data = frames_.data();
  result["text_weights"].data = weights_.data();
  hear_frames(config_, result);
  weigh_text(config_.loss, controls_, batch.frames, {batch.text_targets.as<std::int32_t>(), cells},
             weights_);
  return result;
}

}  // namespace choir
