#include "src/models/codec/data.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "src/comm/agreement.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

/// Rows of a micro-batch, and frames of the longest.
struct SoundKind {
  std::int64_t rows, frames;
};
constexpr std::array<SoundKind, 3> kSoundKinds{{{3, 5}, {2, 8}, {1, 13}}};

}  // namespace

SyntheticSounds::SyntheticSounds(std::uint64_t seed, const CodecConfig& config)
    : length_key_(philox_key(seed, "verify sounds")),
      audio_key_(philox_key(seed, "verify noise")),
      config_(config) {
  for (const BatchShape& shape : shapes())
    batches_.push_back(std::make_unique<HostBatch>(config, shape));
  padding_ = std::make_unique<HostBatch>(
      config, BatchShape{.samples = 1, .audio_samples = config.frame_samples()});
  padding_->clear();
}

BatchShape SyntheticSounds::shape_of_kind(std::size_t kind) const {
  return {.samples = kSoundKinds[kind].rows,
          .audio_samples = kSoundKinds[kind].frames * config_.frame_samples()};
}

std::vector<BatchShape> SyntheticSounds::shapes() const {
  std::vector<BatchShape> list;
  for (std::size_t kind = 0; kind < kSoundKinds.size(); ++kind) list.push_back(shape_of_kind(kind));
  return list;
}

BatchShape SyntheticSounds::shape(std::int64_t index) const {
  return shape_of_kind(kind(index));
}

std::size_t SyntheticSounds::kind(std::int64_t index) const {
  return philox_at(length_key_, static_cast<std::uint64_t>(index), kMostRows)[0] %
         kSoundKinds.size();
}

std::int64_t SyntheticSounds::length(std::int64_t index, std::int64_t row) const {
  const std::int64_t most = shape(index).audio_samples;
  if (row == 0) return most - config_.mel.hop / 2;
  const std::uint32_t word =
      philox_at(length_key_, static_cast<std::uint64_t>(index), static_cast<std::uint64_t>(row))[0];
  return most / 4 + static_cast<std::int64_t>(word % static_cast<std::uint64_t>(most / 2));
}

ModelBatch SyntheticSounds::micro_batch(std::int64_t index) {
  ModelBatch& batch = batches_[kind(index)]->batch;
  const std::int64_t width = batch["audio"].shape[1];
  for (std::int64_t row = 0; row < batch.samples; ++row) {
    const std::int64_t id = index * kMostRows + row, samples = length(index, row);
    auto* audio = static_cast<std::int16_t*>(batch["audio"].data) + row * width;
    const double loud = 200.0 * static_cast<double>(1 + id % 7);
    for (std::int64_t i = 0; i < width; ++i) {
      const double noise =
          normal_at(audio_key_, static_cast<std::uint64_t>(id * (std::int64_t{1} << 32) + i));
      audio[i] = i < samples
                     ? static_cast<std::int16_t>(std::clamp(loud * noise, -32768.0, 32767.0))
                     : std::int16_t{0};
    }
    batch["audio_lengths"].as<std::int32_t>()[row] = static_cast<std::int32_t>(samples);
  }
  set_frame_lengths(config_, batch);
  return batch;
}

ByTerm SyntheticSounds::targets(std::int64_t first, std::int64_t count) const {
  std::int64_t sum = 0;
  for (std::int64_t index = first; index < first + count; ++index)
    for (std::int64_t row = 0; row < kSoundKinds[kind(index)].rows; ++row)
      sum += config_.frames(length(index, row));
  return {family_of(config_).loss_terms(config_).size(), static_cast<double>(sum)};
}

double SyntheticSounds::audio_seconds(std::int64_t index) const {
  std::int64_t sum = 0;
  for (std::int64_t row = 0; row < kSoundKinds[kind(index)].rows; ++row) sum += length(index, row);
  return static_cast<double>(sum) / static_cast<double>(config_.mel.sample_rate);
}

CodecTrainingData::CodecTrainingData(const Deck& deck, const BatchSizes& batch, Mesh& mesh,
                                     Logger& log)
    : config_(codec_settings(deck).model),
      batch_(batch),
      mesh_(mesh),
      log_(log),
      terms_(deck.family().loss_terms(config_).size()),
      data_(open_recordings(deck, codec_request(deck), mesh, true)) {
  drawn_.resize(data_->sources().size());
  if (!has_validation()) warn_without_validation(mesh, log);
}

// Identified by counts: hours of audio are too much to read for it.
std::string CodecTrainingData::contents() const {
  return std::string("speech") + counts_of(*data_, "utterances");
}

void CodecTrainingData::start_training(const Sharding& sharding, std::int64_t per_rank,
                                       const Position& from) {
  steps_.begin(data_->sampler(), from, batch_.global, "utterances", mesh_, log_);
  data_->start_training(steps_.order(sharding, per_rank));
}

ModelBatch CodecTrainingData::next() {
  const SpeechBatch& speech = data_->next();
  ModelBatch batch = codec_batch(config_, speech, lengths_);
  count_dropped(
      speech, [&](const SpeechItem& item) { return targets_of(item); }, batch);
  return batch;
}

// The divisors of the sums of losses: frames of all ranks, without padding.
StepContent CodecTrainingData::content(std::int64_t step, const Model& model) {
  return steps_.content(step, [&](const SpeechStep& planned, StepContent& to) {
    std::int64_t samples = 0;
    for (const SpeechRow& row : planned.rows) {
      samples += row.item.samples;
      ++drawn_[static_cast<std::size_t>(row.item.leaf)];
      to.flops += model.flops({.samples = 1, .audio_samples = row.item.samples});
    }
    announce_targets(
        planned, terms_, [&](const SpeechItem& item) { return targets_of(item); }, to);
    to.audio_seconds = static_cast<double>(samples) / static_cast<double>(data_->sample_rate());
  });
}

std::vector<std::string> CodecTrainingData::take_warnings() {
  return gathered_warnings(*data_, mesh_);
}

}  // namespace choir
