#pragma once
// A tiny FastConformer on one rank (of a mesh) whose parameters are simple functions of the index,
// and ragged batches of noise whose samples are functions of the utterance alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/nn/parameter.hpp"
#include "choir/parallel/sharding/statistics_storage.hpp"
#include "kernels/cpu/ref_element.hpp"
#include "src/device/cpu_device.hpp"
#include "src/models/fastconformer/fastconformer.hpp"

namespace choir::test {

/// 16 bins of a short window: utterances of a few thousand samples have tens of frames.
inline FastConformerConfig tiny_conformer() {
  FastConformerConfig c{.n_layer = 2,
                        .n_embd = 16,
                        .n_head = 4,
                        .ffn_width = 24,
                        .conv_kernel = 5,
                        .subsampling = 4,
                        .subsampling_channels = 8,
                        .dropout = 0,
                        .vocab_size = 6};
  c.mel.window = 200, c.mel.hop = 80, c.mel.fft = 256, c.mel.mels = 16;
  c.augment = {.time_masks = 0, .frequency_masks = 0};
  return c;
}

/// Utterances by their ids; everything about one is a function of its id and length.
struct SpeechBatch {
  std::vector<std::int16_t> audio;
  std::vector<std::int32_t> audio_lengths, frame_lengths, labels, label_lengths;
  std::vector<std::int64_t> ids;
  ModelBatch batch;

  SpeechBatch(const FastConformerConfig& c, std::vector<std::int64_t> which,
              const std::vector<std::int64_t>& lengths, std::int64_t padded = 0)
      : ids(std::move(which)) {
    const auto rows = static_cast<std::int64_t>(ids.size());
    const std::int64_t samples =
        std::max(padded, *std::max_element(lengths.begin(), lengths.end()));
    constexpr std::int64_t kLabels = 3;
    audio.assign(static_cast<std::size_t>(rows * samples), 0);
    labels.assign(static_cast<std::size_t>(rows * kLabels), -1);
    for (std::int64_t b = 0; b < rows; ++b) {
      const std::int64_t length = lengths[static_cast<std::size_t>(b)];
      const std::int64_t id = ids[static_cast<std::size_t>(b)];
      for (std::int64_t i = 0; i < length; ++i)
        audio[static_cast<std::size_t>(b * samples + i)] = static_cast<std::int16_t>(
            (i * (37 + 11 * id) + i * i * (3 + id) % 4099) % 16001 - 8000);
      audio_lengths.push_back(static_cast<std::int32_t>(length));
      const std::int64_t count = length == 0 ? 0 : 1 + (id + 1) % kLabels;
      label_lengths.push_back(static_cast<std::int32_t>(count));
      for (std::int64_t u = 0; u < count; ++u)
        labels[static_cast<std::size_t>(b * kLabels + u)] =
            static_cast<std::int32_t>((2 * id + 5 * u + 1) % c.vocab_size);
    }
    for (int k = 0; k <= c.stages(); ++k)
      for (const std::int64_t length : lengths)
        frame_lengths.push_back(static_cast<std::int32_t>(c.lengths_after(k, length)));
    batch = speech_fields(c.stages(), {.samples = rows});
    batch["audio"] = {audio.data(), DType::u16, {rows, samples}};
    batch["audio_lengths"] = {audio_lengths.data(), DType::i32, {rows}};
    batch["frame_lengths"] = {frame_lengths.data(), DType::i32, {c.stages() + 1, rows}};
    batch["sample_ids"] = {ids.data(), DType::i64, {rows}};
    batch["labels"] = {labels.data(), DType::i32, {rows, kLabels}};
    batch["label_lengths"] = {label_lengths.data(), DType::i32, {rows}};
    batch.scale = 0.25;
  }
};

/// The value of element i of a parameter: it uses no generator, so that other programs can compute
/// it, too.
inline double simple_value(const Parameter& p, std::int64_t i) {
  double h = 0;
  for (const char c : p.name) h = std::fmod(h * 31 + static_cast<unsigned char>(c), 1009);
  const double base = p.init.kind == Init::Kind::ones ? 1.0 : 0.0;
  const double fan = p.shape.rank() > 1 ? static_cast<double>(p.shape[1]) : 4.0;
  return base + std::sin(0.7 * static_cast<double>(i) + h) / std::sqrt(fan);
}

class TinyModel {
 public:
  explicit TinyModel(const FastConformerConfig& config, const char* precision = "fp64",
                     const ModelCut& cut = {}, const TensorAxis& tensor = {})
      : precision_(precision_of(precision)),
        arena_(device_, std::size_t{96} << 20),
        parameters_({.rank = tensor.rank(), .ranks = tensor.size(), .sequence = tensor.sequence}),
        model_(config, parameters_, cut),
        pass_(Stream(device_), arena_, precision_, 21, tensor) {
    parameters_.place(1);
    const auto bytes = [&](DType type) {
      return static_cast<std::size_t>(parameters_.flat_size()) * size_of(type);
    };
    masters_ = Buffer(device_, bytes(precision_.master));
    values_ = Buffer(device_, bytes(precision_.compute));
    gradients_ = Buffer(device_, bytes(precision_.gradient));
    for (const Buffer* b : {&masters_, &values_, &gradients_}) device_.zero(b->data(), b->bytes());
    parameters_.bind(precision_, values_.data(), masters_.data(), gradients_.data());
    for (Parameter& p : parameters_.parameters())
      for (const ShardRun& run : shard_runs(p))
        for (std::int64_t i = 0; i < run.count; ++i)
          ref::store(p.value.data, p.value.dtype, run.local + i, simple_value(p, run.logical + i));
    statistics_ = std::make_unique<StatisticsStorage>(parameters_, precision_, device_);
    statistics_->initialise();
    tables_ = Buffer(device_, model_.table_bytes(precision_));
    model_.prepare(pass_, tables_.data());
  }

  FastConformer& model() { return model_; }
  ParameterSet& parameters() { return parameters_; }
  Pass& pass() { return pass_; }
  Arena& arena() { return arena_; }

  void begin(Mode mode, const ModelBatch& batch) {
    for (Parameter& p : parameters_.parameters()) p.gradient_live = false;
    device_.zero(gradients_.data(), gradients_.bytes());
    pass_.begin(mode, model_.sequence_of(batch, {}), 0);
  }
  /// The result of the last piece.
  Tensor forward(Mode mode, const ModelBatch& batch) {
    begin(mode, batch);
    Tensor stream;
    for (int i = 0; i < model_.pieces(); ++i)
      stream = model_.forward(pass_, i, std::move(stream), batch);
    return stream;
  }
  void backward(const ModelBatch& batch) {
    Tensor d;
    for (int i = model_.pieces() - 1; i >= 0; --i)
      d = model_.backward(pass_, i, std::move(d), batch);
  }
  /// Returns scale * sum of losses; gradients exist afterwards.
  double loss(const ModelBatch& batch) {
    double sum = 0;
    {
      const Tensor losses = forward(Mode::train, batch);
      for (std::int64_t b = 0; b < losses.count(); ++b)
        sum += ref::load(losses.data, losses.dtype, b);
    }
    backward(batch);
    return batch.scale * sum;
  }

 private:
  CpuDevice device_;
  Precision precision_;
  Arena arena_;
  ParameterSet parameters_;
  FastConformer model_;
  Pass pass_;
  Buffer masters_, values_, gradients_, tables_;
  std::unique_ptr<StatisticsStorage> statistics_;
};

}  // namespace choir::test
