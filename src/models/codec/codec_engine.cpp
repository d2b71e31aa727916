// CodecFamily: the model, its micro-batches and its runs.
#include <fmt/core.h>

#include <algorithm>

#include "choir/deck/deck.hpp"
#include "choir/train/step/synthetic_data.hpp"
#include "src/models/codec/codec_data.hpp"
#include "src/models/codec/codec_family.hpp"
#include "src/models/codec/synthetic_sounds.hpp"

namespace choir {

ModelBatch codec_fields(const BatchShape& shape) {
  ModelBatch batch;
  batch.samples = shape.samples;
  const auto add = [&](std::string_view name, DType type, const Shape& extents) {
    batch.add({.name = name, .view = {nullptr, type, extents}});
  };
  add("audio", DType::u16, {shape.samples, shape.audio_samples});  // 16 bits, signed
  add("audio_lengths", DType::i32, {shape.samples});
  add("frame_lengths", DType::i32, {2, shape.samples});
  return batch;
}

void set_frame_lengths(const CodecConfig& config, ModelBatch& batch) {
  const std::int64_t rows = batch["audio"].shape[0];
  auto* lengths = batch["frame_lengths"].as<std::int32_t>();
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t frames = config.frames(batch["audio_lengths"].as<std::int32_t>()[row]);
    lengths[row] = static_cast<std::int32_t>(frames * config.rows);
    lengths[rows + row] = static_cast<std::int32_t>(frames);
  }
}

ModelBatch code_fields(const TensorView& codes, std::int64_t frames) {
  ModelBatch batch;
  batch.samples = 1;
  batch.tokens = frames;
  batch.add({.name = "codes", .view = codes});
  return batch;
}

const ModelFamily& codec_family() {
  static const CodecFamily kFamily;
  return kFamily;
}

const ModelFamily& family_of(const CodecConfig&) {
  return codec_family();
}

std::vector<LossTerm> CodecFamily::loss_terms(const ModelConfig& config) const {
  const auto& c = config.as<CodecConfig>();
  if (!c.makes_sound()) return ModelFamily::loss_terms(config);
  return {{"mel_loss", c.loss.mel},
          {"stft_loss", c.loss.stft},
          {"convergence_loss", c.loss.convergence}};
}

UnitCosts CodecFamily::unit_costs(const ModelConfig& config) const {
  const auto& c = config.as<CodecConfig>();
  return Codec::unit_costs(c, {.samples = 1, .audio_samples = 10 * c.mel.sample_rate});
}

std::string CodecFamily::describe(const ModelConfig& config) const {
  const auto& c = config.as<CodecConfig>();
  return fmt::format(
      "frames of {} rows of {} mels ({:.0f} ms), {} -> {} -> {} codebooks of {} codes ({}) -> {} "
      "-> {}{}",
      c.rows, c.mel.mels,
      1000.0 * static_cast<double>(c.frame_samples()) / static_cast<double>(c.mel.sample_rate),
      c.features(), c.encoder_width, c.codebooks, c.fsq().codes(), c.levels, c.decoder_width,
      c.outputs(),
      c.makes_sound() ? fmt::format(" -> {} samples", c.frame_samples()) : std::string());
}

ModelBatch CodecFamily::fields(const ModelConfig&, const BatchShape& shape) const {
  return codec_fields(shape);
}

void CodecFamily::fill(const ModelConfig& config, const BatchShape& shape,
                       ModelBatch& batch) const {
  std::fill_n(batch["audio_lengths"].as<std::int32_t>(), shape.samples,
              static_cast<std::int32_t>(shape.audio_samples));
  set_frame_lengths(config.as<CodecConfig>(), batch);
}

void CodecFamily::clear(ModelBatch& batch) const {
  for (const char* lengths : {"audio_lengths", "frame_lengths"})
    std::fill_n(batch[lengths].as<std::int32_t>(), batch[lengths].count(), 0);
}

std::unique_ptr<TrainingData> CodecFamily::open_data(const Deck& deck, const BatchSizes& batch,
                                                     Mesh& mesh, Logger& log) const {
  if (deck.data.format != "synthetic")
    return std::make_unique<CodecTrainingData>(deck, batch, mesh, log);
  const CodecConfig config = model(deck).as<CodecConfig>();
  return std::make_unique<SyntheticData>(
      std::make_unique<SyntheticSounds>(static_cast<std::uint64_t>(deck.run.seed), config), config,
      batch,
      fmt::format("noise, nothing is read; {} micro-batches a step", deck.train.micro_batches));
}

std::unique_ptr<EvaluationData> CodecFamily::open_evaluation(const Deck& deck,
                                                             const std::string& vocabulary,
                                                             Mesh& mesh, Logger& log) const {
  if (deck.data.format != "synthetic") return std::make_unique<CodecEvaluationData>(deck, mesh);
  return ModelFamily::open_evaluation(deck, vocabulary, mesh, log);
}

std::unique_ptr<SyntheticBatches> CodecFamily::synthetic_batches(const ModelConfig& config,
                                                                 std::uint64_t seed,
                                                                 std::int64_t) const {
  return std::make_unique<SyntheticSounds>(seed, config.as<CodecConfig>());
}

void CodecFamily::evaluate_once(ModelInstance& instance, const ModelBatch& batch) const {
  CodedFrames(instance).run(batch);
}

}  // namespace choir
