#include "choir/model/host_batch.hpp"

#include <algorithm>

namespace choir {
namespace {

constexpr std::size_t kAlignment = 64;

void fill(const TensorView& view, std::int64_t value) {
  std::fill_n(view.as<std::int32_t>(), view.count(), static_cast<std::int32_t>(value));
}

}  // namespace

ModelBatch fields_of(const ModelConfig& config, const BatchShape& shape) {
  ModelBatch batch{.samples = shape.samples};
  const std::int64_t rows = shape.samples;
  const auto integers = [](const Shape& extents) {
    return TensorView{nullptr, DType::i32, extents};
  };
  if (!config.is_speech()) {
    batch.inputs = batch.targets = integers({rows * shape.tokens});
    return batch;
  }
  batch.audio = {nullptr, DType::u16, {rows, shape.audio_samples}};  // 16 bits, signed
  batch.audio_lengths = batch.label_lengths = integers({rows});
  batch.frame_lengths = integers({config.fastconformer().stages() + 1, rows});
  batch.sample_ids = {nullptr, DType::i64, {rows}};
  batch.labels = integers({rows, shape.labels});
  return batch;
}

std::size_t padded_field_bytes(const TensorView& field) {
  return (field.bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t bytes_of_fields(ModelBatch batch) {
  std::size_t bytes = 0;
  for (const TensorView* field : batch.fields())
    if (field->shape.rank() > 0) bytes += padded_field_bytes(*field);
  return bytes;
}

HostBatch::HostBatch(const ModelConfig& config, const BatchShape& shape)
    : batch(fields_of(config, shape)), memory_(bytes_of_fields(batch)) {
  std::byte* at = memory_.data();
  for (TensorView* field : batch.fields()) {
    if (field->shape.rank() == 0) continue;
    field->data = at;
    at += padded_field_bytes(*field);
  }
  if (config.is_speech()) add_speech(config.fastconformer(), shape);
}

void HostBatch::add_speech(const FastConformerConfig& config, const BatchShape& shape) {
  fill(batch.audio_lengths, shape.audio_samples);
  fill(batch.label_lengths, shape.labels);
  for (int stage = 0; stage <= config.stages(); ++stage)
    fill(batch.frame_lengths.slice(stage, 1), config.lengths_after(stage, shape.audio_samples));
  for (std::int64_t row = 0; row < shape.samples; ++row)
    batch.sample_ids.as<std::int64_t>()[row] = row;
}

void HostBatch::clear() {
  CHOIR_CHECK(!batch.audio.empty(), "a batch without speech");
  for (const TensorView& lengths : {batch.audio_lengths, batch.label_lengths, batch.frame_lengths})
    fill(lengths, 0);
  fill(batch.labels, -1);
}

}  // namespace choir
