#include "choir/train/synthetic/synthetic_utterances.hpp"

#include <algorithm>
#include <cmath>

namespace choir {
namespace {

/// Rows, and frames of the encoder.
struct Kind {
  std::int64_t rows, frames;
};
constexpr std::array<Kind, 3> kKinds{{{3, 6}, {2, 9}, {1, 14}}};

BatchShape shape_of(const FastConformerConfig& config, const Kind& kind) {
  return {.samples = kind.rows,
          .audio_samples = kind.frames * config.mel.hop * config.subsampling,
          .labels = kind.frames / 2};
}

}  // namespace

SyntheticUtterances::SyntheticUtterances(std::uint64_t seed, const FastConformerConfig& config)
    : shape_key_(philox_key(seed, "verify utterances")),
      audio_key_(philox_key(seed, "verify audio")),
      label_key_(philox_key(seed, "verify transcripts")),
      config_(config) {
  for (const BatchShape& shape : shapes())
    batches_.push_back(std::make_unique<HostBatch>(config, shape));
  padding_ = std::make_unique<HostBatch>(
      config, BatchShape{.samples = 1, .audio_samples = config.mel.hop, .labels = 1});
  padding_->clear();
}

std::vector<BatchShape> SyntheticUtterances::shapes() const {
  std::vector<BatchShape> list;
  for (const Kind& kind : kKinds) list.push_back(shape_of(config_, kind));
  return list;
}

BatchShape SyntheticUtterances::shape(std::int64_t index) const {
  return shape_of(config_, kKinds[kind(index)]);
}

std::int64_t SyntheticUtterances::audio_samples(std::int64_t index) const {
  std::int64_t sum = 0;
  for (std::int64_t at = 0; at < kKinds[kind(index)].rows; ++at) sum += row(index, at).samples;
  return sum;
}

std::size_t SyntheticUtterances::kind(std::int64_t index) const {
  return philox_at(shape_key_, static_cast<std::uint64_t>(index), kMostRows)[0] % kKinds.size();
}

// With half as many labels as frames a path exists, whatever repeats.
SyntheticUtterances::Row SyntheticUtterances::row(std::int64_t index, std::int64_t row) const {
  const BatchShape shape = this->shape(index);
  const PhiloxBlock word =
      philox_at(shape_key_, static_cast<std::uint64_t>(index), static_cast<std::uint64_t>(row));
  const auto below = [](std::uint32_t w, std::int64_t n) {
    return static_cast<std::int64_t>(w % static_cast<std::uint64_t>(n));
  };
  Row result;
  // The longest fills the shape.
  result.samples = row == 0 ? shape.audio_samples
                            : shape.audio_samples / 3 + below(word[0], shape.audio_samples / 2);
  const std::int64_t most = std::min(shape.labels, config_.frames(result.samples) / 2);
  result.labels = below(word[1], most + 1);
  return result;
}

void SyntheticUtterances::fill(ModelBatch& batch, std::int64_t index, std::int64_t at) const {
  const Row utterance = row(index, at);
  const std::int64_t id = index * kMostRows + at;
  const std::int64_t rows = batch.samples, samples = batch.audio.shape[1];
  auto* audio = static_cast<std::int16_t*>(batch.audio.data) + at * samples;
  for (std::int64_t i = 0; i < samples; ++i) {
    const double loud = 400.0 * static_cast<double>(1 + id % 7);
    const double noise =
        normal_at(audio_key_, static_cast<std::uint64_t>(id * (std::int64_t{1} << 32) + i));
    audio[i] = i < utterance.samples
                   ? static_cast<std::int16_t>(std::clamp(loud * noise, -32768.0, 32767.0))
                   : std::int16_t{0};
  }
  const auto set = [](const TensorView& view, std::int64_t i, std::int64_t value) {
    view.as<std::int32_t>()[i] = static_cast<std::int32_t>(value);
  };
  set(batch.audio_lengths, at, utterance.samples);
  set(batch.label_lengths, at, utterance.labels);
  for (int stage = 0; stage <= config_.stages(); ++stage)
    set(batch.frame_lengths, stage * rows + at, config_.lengths_after(stage, utterance.samples));
  batch.sample_ids.as<std::int64_t>()[at] = id;
  const std::int64_t labels = batch.labels.shape[1];
  for (std::int64_t u = 0; u < labels; ++u) {
    const PhiloxBlock word =
        philox_at(label_key_, static_cast<std::uint64_t>(id), static_cast<std::uint64_t>(u));
    set(batch.labels, at * labels + u,
        u < utterance.labels
            ? static_cast<std::int64_t>(word[0] % static_cast<std::uint64_t>(config_.vocab_size))
            : -1);
  }
}

ModelBatch SyntheticUtterances::micro_batch(std::int64_t index) {
  ModelBatch& batch = batches_[kind(index)]->batch;
  for (std::int64_t at = 0; at < batch.samples; ++at) fill(batch, index, at);
  return batch;
}

ModelBatch SyntheticUtterances::padding() {
  return padding_->batch;
}

std::int64_t SyntheticUtterances::targets(std::int64_t first, std::int64_t count) const {
  std::int64_t sum = 0;
  for (std::int64_t index = first; index < first + count; ++index)
    for (std::int64_t at = 0; at < kKinds[kind(index)].rows; ++at) sum += row(index, at).labels;
  return sum;
}

}  // namespace choir
