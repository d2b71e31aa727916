#include "src/models/duplex/duplex_batch.hpp"

#include <algorithm>

namespace choir {

ModelBatch duplex_fields(const DuplexConfig& config, const BatchShape& shape) {
  ModelBatch batch;
  batch.samples = shape.samples;
  batch.tokens = shape.tokens;
  const std::int64_t b = shape.samples, cells = b * shape.tokens;
  const auto add = [&](std::string_view name, DType type, const Shape& extents, Shared shared,
                       std::int32_t padding = 0) {
    batch.add(
        {.name = name, .view = {nullptr, type, extents}, .shared = shared, .padding = padding});
  };
  add("audio", DType::u16, {b, shape.audio_samples}, Shared::rows);  // 16 bits, signed
  add("audio_lengths", DType::i32, {b}, Shared::rows);
  add("frame_lengths", DType::i32, {config.encoder.stages() + 1, b}, Shared::columns);
  add("sample_ids", DType::i64, {b}, Shared::rows);
  add("dialogue_ids", DType::i64, {b}, Shared::nothing);
  add("frames", DType::i32, {cells}, Shared::positions);
  add("text", DType::i32, {cells}, Shared::positions);
  add("text_targets", DType::i32, {cells}, Shared::positions, -1);
  add("text_weights", DType::f32, {cells}, Shared::positions);
  add("codes", DType::i32, {cells, config.codebooks}, Shared::positions);
  add("code_targets", DType::i32, {cells * config.codebooks}, Shared::positions, -1);
  return batch;
}

void hear_frames(const DuplexConfig& config, ModelBatch& batch) {
  const std::int64_t all = config.encoder.frames(batch["audio"].shape[1]);
  auto* at = batch["frames"].as<std::int32_t>();
  for (std::int64_t row = 0; row < batch.samples; ++row)
    for (std::int64_t t = 0; t < batch.tokens; ++t)
      *at++ = t < all ? static_cast<std::int32_t>(-1 - (row * all + t)) : 0;
}

void weigh_text(const DuplexLoss& loss, const DialogueControls& controls, std::int64_t frames,
                std::span<const std::int32_t> targets, std::span<float> weights) {
  CHOIR_CHECK(targets.size() == weights.size() && std::ssize(targets) % frames == 0,
              "{} weights of {} targets in rows of {}", weights.size(), targets.size(), frames);
  const double pad_in_turn = loss.pad_in_turn < 0 ? loss.pad : loss.pad_in_turn;
  bool in_turn = false;
  for (std::size_t at = 0; at < targets.size(); ++at) {
    const std::int32_t target = targets[at];
    if (static_cast<std::int64_t>(at) % frames == 0 || target == controls.eos) in_turn = false;
    const double weight = target < 0               ? 0
                          : target == controls.pad ? (in_turn ? pad_in_turn : loss.pad)
                          : target == controls.bos ? loss.bos
                          : target == controls.eos ? loss.eos
                                                   : 1;
    weights[at] = static_cast<float>(weight);
    if (target == controls.bos) in_turn = true;
  }
}

void check_dialogue_length(const DuplexConfig& config, std::int64_t frames) {
  if (frames <= config.lm.block_size) return;
  throw DeckError(fmt::format("a dialogue has {} frames, but the language model has only "
                              "model.lm.block_size = {} positions",
                              frames, config.lm.block_size),
                  "cut dialogues, or raise model.lm.block_size");
}

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
