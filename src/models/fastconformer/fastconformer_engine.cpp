// FastConformerFamily: the model, its micro-batches and its runs.
#include <algorithm>

#include "choir/deck/deck.hpp"
#include "choir/train/step/synthetic_data.hpp"
#include "src/models/fastconformer/fastconformer_family.hpp"
#include "src/models/fastconformer/speech_scores.hpp"
#include "src/models/fastconformer/speech_training_data.hpp"
#include "src/models/fastconformer/synthetic_speech.hpp"

namespace choir {
namespace {

void fill_integers(const TensorView& view, std::int64_t value) {
  std::fill_n(view.as<std::int32_t>(), view.count(), static_cast<std::int32_t>(value));
}

}  // namespace

ModelBatch speech_fields(int stages, const BatchShape& shape) {
  const std::int64_t rows = shape.samples;
  ModelBatch batch;
  batch.samples = rows;
  const auto add = [&](std::string_view name, DType type, const Shape& extents) {
    batch.add({.name = name, .view = {nullptr, type, extents}});
  };
  add("audio", DType::u16, {rows, shape.audio_samples});  // 16 bits, signed
  add("audio_lengths", DType::i32, {rows});
  add("frame_lengths", DType::i32, {stages + 1, rows});
  add("sample_ids", DType::i64, {rows});
  add("labels", DType::i32, {rows, shape.labels});
  add("label_lengths", DType::i32, {rows});
  return batch;
}

const ModelFamily& fastconformer_family() {
  static const FastConformerFamily kFamily;
  return kFamily;
}

const ModelFamily& family_of(const FastConformerConfig&) {
  return fastconformer_family();
}

UnitCosts FastConformerFamily::unit_costs(const ModelConfig& config) const {
  constexpr std::int64_t kSeconds = 10, kLabels = 100;
  const auto& c = config.as<FastConformerConfig>();
  return FastConformer::unit_costs(
      c, {.samples = 1, .audio_samples = kSeconds * c.mel.sample_rate, .labels = kLabels});
}

std::string FastConformerFamily::describe(const ModelConfig& config) const {
  const auto& c = config.as<FastConformerConfig>();
  return fmt::format(
      "{} blocks of {}, {} heads, {} taps, subsampling {} with {} channels, {} symbols and the "
      "blank, dropout {}, stochastic depth {}, {} and {} masks of SpecAugment, dither {}",
      c.n_layer, c.n_embd, c.n_head, c.conv_kernel, c.subsampling, c.subsampling_channels,
      c.vocab_size, c.dropout, c.stochastic_depth, c.augment.frequency_masks, c.augment.time_masks,
      c.mel.dither);
}

ModelBatch FastConformerFamily::fields(const ModelConfig& config, const BatchShape& shape) const {
  return speech_fields(config.as<FastConformerConfig>().stages(), shape);
}

void FastConformerFamily::fill(const ModelConfig& config, const BatchShape& shape,
                               ModelBatch& batch) const {
  const auto& c = config.as<FastConformerConfig>();
  fill_integers(batch["audio_lengths"], shape.audio_samples);
  fill_integers(batch["label_lengths"], shape.labels);
  for (int stage = 0; stage <= c.stages(); ++stage)
    fill_integers(batch["frame_lengths"].slice(stage, 1),
                  c.lengths_after(stage, shape.audio_samples));
  for (std::int64_t row = 0; row < shape.samples; ++row)
    batch["sample_ids"].as<std::int64_t>()[row] = row;
}

ops::BenchShape FastConformerFamily::op_shape(const ModelConfig& config,
                                              const BatchShape& shape) const {
  const auto& c = config.as<FastConformerConfig>();
  const std::int64_t frames = c.frames(shape.audio_samples);
  return {.rows = shape.samples * frames,
          .width = c.n_embd,
          .hidden = c.hidden(),
          .vocabulary = c.vocab_size,
          .tokens = frames,
          .head_width = c.n_embd / c.n_head,
          .speech = EncoderTower::op_shape(c, shape.samples, shape.audio_samples)};
}

void FastConformerFamily::clear(ModelBatch& batch) const {
  for (const char* lengths : {"audio_lengths", "label_lengths", "frame_lengths"})
    fill_integers(batch[lengths], 0);
  fill_integers(batch["labels"], -1);
}

std::unique_ptr<TrainingData> FastConformerFamily::open_data(const Deck& deck,
                                                             const BatchSizes& batch, Mesh& mesh,
                                                             Logger& log) const {
  if (deck.data.format == "synthetic") {
    const FastConformerConfig& config = speech_of(deck);
    return std::make_unique<SyntheticData>(
        std::make_unique<SyntheticUtterances>(static_cast<std::uint64_t>(deck.run.seed), config),
        config, batch,
        fmt::format("random utterances with random transcripts of {} symbols, nothing is "
                    "read; {} micro-batches a step",
                    config.vocab_size, deck.train.micro_batches));
  }
  return std::make_unique<SpeechTrainingData>(deck, batch, mesh, log);
}

std::unique_ptr<EvaluationData> FastConformerFamily::open_evaluation(const Deck& deck,
                                                                     const std::string& vocabulary,
                                                                     Mesh& mesh, Logger&) const {
  return std::make_unique<SpeechEvaluationData>(deck, vocabulary, mesh);
}

std::unique_ptr<SyntheticBatches> FastConformerFamily::synthetic_batches(const ModelConfig& config,
                                                                         std::uint64_t seed,
                                                                         std::int64_t) const {
  return std::make_unique<SyntheticUtterances>(seed, config.as<FastConformerConfig>());
}

std::unique_ptr<BenchBatches> FastConformerFamily::bench_batches(const Deck& deck,
                                                                 const BatchSizes& batch, Mesh&,
                                                                 Logger&,
                                                                 const BenchAudio& audio) const {
  return std::make_unique<SpeechBenchBatches>(model(deck).as<FastConformerConfig>(), batch, audio);
}

void FastConformerFamily::evaluate_once(ModelInstance& instance, const ModelBatch& batch) const {
  SpeechRecogniser(instance).run(batch);
}

}  // namespace choir
