#include "choir/train/synthetic/synthetic_speech.hpp"

#include <algorithm>
#include <cmath>

#include "choir/core/error.hpp"
#include "choir/core/philox.hpp"

namespace choir {
namespace {

std::int32_t& at(const TensorView& view, std::int64_t i) {
  return view.as<std::int32_t>()[i];
}

}  // namespace

SyntheticSpeech::SyntheticSpeech(const FastConformerConfig& config, const Options& options)
    : config_(config), options_(options) {
  if (!(options.shortest > 0 && options.shortest <= options.longest &&
        options.longest <= options.batch_duration))
    throw DeckError(fmt::format("utterances of {} to {} s in micro-batches of {} s",
                                options.shortest, options.longest, options.batch_duration),
                    "the shortest is above 0, the longest fits a micro-batch");
  for (int i = 0; i < kBatches; ++i) made_.push_back(make(i));
  padding_ = std::make_unique<HostBatch>(
      config, BatchShape{.samples = 1, .audio_samples = config.mel.hop, .labels = 1});
  padding_->clear();
}

// The i-th of equal ranges of duration, its upper edge first.
SyntheticSpeech::Made SyntheticSpeech::make(int number) const {
  const double range = (options_.longest - options_.shortest) / kBatches;
  const double most = options_.shortest + range * (number + 1);
  const std::int64_t frame = config_.mel.hop * config_.subsampling;
  const auto samples_of = [&](double seconds) {
    return static_cast<std::int64_t>(seconds * config_.mel.sample_rate);
  };
  const auto rows = static_cast<std::int64_t>(options_.batch_duration / most);
  Made made;
  made.shape = {.samples = rows,
                .audio_samples = (samples_of(most) + frame - 1) / frame * frame,
                .labels = std::max<std::int64_t>(
                    1, static_cast<std::int64_t>(options_.labels_per_second * most))};
  made.memory = std::make_unique<HostBatch>(config_, made.shape);
  made.memory->clear();
  const PhiloxKey key = philox_key(options_.seed, "synthetic lengths");
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t id = number * (std::int64_t{1} << 20) + row;
    const double part = 0x1p-32 * philox_at(key, static_cast<std::uint64_t>(id))[0];
    fill(made, row, samples_of(row == 0 ? most : most - range * part), id);
  }
  return made;
}

void SyntheticSpeech::fill(Made& made, std::int64_t row, std::int64_t samples,
                           std::int64_t id) const {
  const ModelBatch& batch = made.memory->batch;
  auto* audio = static_cast<std::int16_t*>(batch.audio.data) + row * made.shape.audio_samples;
  const PhiloxKey noise = philox_key(options_.seed, "synthetic audio");
  for (std::int64_t i = 0; i < samples; ++i) {
    const auto word =
        philox_at(noise, static_cast<std::uint64_t>(id), static_cast<std::uint64_t>(i / 4));
    audio[i] = static_cast<std::int16_t>(word[static_cast<std::size_t>(i % 4)] >> 20) - 2048;
  }
  // With half as many labels as frames a path exists, whatever repeats.
  const double seconds = static_cast<double>(samples) / config_.mel.sample_rate;
  const auto spoken = static_cast<std::int64_t>(options_.labels_per_second * seconds);
  const std::int64_t labels = std::min(spoken, config_.frames(samples) / 2);
  at(batch.audio_lengths, row) = static_cast<std::int32_t>(samples);
  at(batch.label_lengths, row) = static_cast<std::int32_t>(labels);
  batch.sample_ids.as<std::int64_t>()[row] = id;
  for (int stage = 0; stage <= config_.stages(); ++stage)
    at(batch.frame_lengths, stage * made.shape.samples + row) =
        static_cast<std::int32_t>(config_.lengths_after(stage, samples));
  const PhiloxKey units = philox_key(options_.seed, "synthetic transcripts");
  for (std::int64_t u = 0; u < labels; ++u) {
    const auto word =
        philox_at(units, static_cast<std::uint64_t>(id), static_cast<std::uint64_t>(u));
    at(batch.labels, row * made.shape.labels + u) =
        static_cast<std::int32_t>(word[0] % static_cast<std::uint64_t>(config_.vocab_size));
  }
  made.seconds += seconds;
  made.targets += static_cast<double>(labels);
}

std::vector<BatchShape> SyntheticSpeech::shapes() const {
  std::vector<BatchShape> list;
  for (const Made& made : made_) list.push_back(made.shape);
  return list;
}

double SyntheticSpeech::flops(std::int64_t index, const Model& model) const {
  const Made& made = batch(index);
  double sum = 0;
  for (std::int64_t row = 0; row < made.shape.samples; ++row)
    sum += model.flops({.samples = 1,
                        .audio_samples = at(made.memory->batch.audio_lengths, row),
                        .labels = at(made.memory->batch.label_lengths, row)});
  return sum;
}

}  // namespace choir
