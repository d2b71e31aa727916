#include "choir/data/speech/speech_batch.hpp"

#include <algorithm>

#include "choir/core/error.hpp"
#include "choir/data/tokens/batch.hpp"

namespace choir {

SpeechBatchBuffer::SpeechBatchBuffer(std::span<const SpeechShape> shapes,
                                     const SpeechFrames& frames, bool whole)
    : frames_(frames) {
  if (whole) whole_.assign(shapes.begin(), shapes.end());
  std::int64_t most = 1, audio = frames.multiple(), labels = 1;
  for (const SpeechShape& shape : shapes) {
    most = std::max(most, shape.utterances);
    audio = std::max(audio, shape.utterances * shape.samples);
    labels = std::max(labels, shape.utterances * std::max<std::int64_t>(shape.labels, 1));
  }
  const auto n = static_cast<std::size_t>(most);
  audio_.resize(static_cast<std::size_t>(audio));
  audio_lengths_.resize(n);
  frame_lengths_.resize(n * static_cast<std::size_t>(frames.stages + 1));
  ids_.resize(n);
  labels_.resize(static_cast<std::size_t>(labels));
  label_lengths_.resize(n);
  rows.reserve(n);
}

std::size_t SpeechBatchBuffer::bytes() const {
  return audio_.size() * 2 + ids_.size() * 8 +
         4 * (audio_lengths_.size() + frame_lengths_.size() + labels_.size() +
              label_lengths_.size());
}

SpeechShape SpeechBatchBuffer::shape_of(std::span<const SpeechRow> of) const {
  SpeechShape shape{std::max<std::int64_t>(std::ssize(of), 1), 0, 1};
  for (const SpeechRow& row : of) {
    shape.samples = std::max<std::int64_t>(shape.samples, row.item.samples);
    shape.labels = std::max<std::int64_t>(shape.labels, row.item.labels);
  }
  shape.samples = frames_.padded(shape.samples);
  const auto holds = [&](const SpeechShape& s) {
    return s.utterances >= shape.utterances && s.samples >= shape.samples &&
           s.labels >= shape.labels;
  };
  const auto found = std::find_if(whole_.begin(), whole_.end(), holds);
  return found == whole_.end() ? shape : *found;
}

void SpeechBatchBuffer::lay_out(std::span<const SpeechRow> from, const SpeechCorpus& corpus) {
  rows.assign(from.begin(), from.end());
  batch.rows = rows;
  const auto [b, s, most] = shape_of(rows);
  batch.samples = batch.targets = 0;
  for (const SpeechRow& row : rows) {
    batch.samples += row.item.samples;
    batch.targets += row.item.labels;
  }
  CHOIR_CHECK(
      b <= std::ssize(ids_) && b * s <= std::ssize(audio_) && b * most <= std::ssize(labels_),
      "{} utterances, {} samples, {} labels in memory for {}, {}, {}", b, b * s, b * most,
      ids_.size(), audio_.size(), labels_.size());
  batch.audio = {audio_.data(), DType::u16, {b, s}};
  batch.audio_lengths = {audio_lengths_.data(), DType::i32, {b}};
  batch.frame_lengths = {frame_lengths_.data(), DType::i32, {frames_.stages + 1, b}};
  batch.sample_ids = {ids_.data(), DType::i64, {b}};
  batch.labels = {labels_.data(), DType::i32, {b, most}};
  batch.label_lengths = {label_lengths_.data(), DType::i32, {b}};
  for (std::int64_t r = std::ssize(rows); r < b; ++r) {
    ids_[static_cast<std::size_t>(r)] = 0;
    set_lengths(r, 0, 0);
  }
  std::fill_n(labels_.begin(), b * most, kIgnoredTarget);
  for (std::int64_t r = 0; r < std::ssize(rows); ++r) {
    const SpeechRow& row = rows[static_cast<std::size_t>(r)];
    set_lengths(r, row.item.samples, row.item.labels);
    ids_[static_cast<std::size_t>(r)] = row.epoch * corpus.utterances() + corpus.number(row.item);
    const auto ids = corpus.labels(row.item);
    std::copy(ids.begin(), ids.end(), labels_.begin() + r * most);
  }
}

void SpeechBatchBuffer::set_lengths(std::int64_t row, std::int64_t samples, std::int64_t labels) {
  audio_lengths_[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(samples);
  label_lengths_[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(labels);
  for (int stage = 0; stage <= frames_.stages; ++stage)
    frame_lengths_[static_cast<std::size_t>(stage * batch.sample_ids.shape[0] + row)] =
        static_cast<std::int32_t>(frames_.after(stage, samples));
}

void SpeechBatchBuffer::empty_row(std::int64_t row) {
  const std::int64_t s = batch.audio.shape[1], u = batch.labels.shape[1];
  const SpeechItem& item = rows[static_cast<std::size_t>(row)].item;
  batch.samples -= item.samples;
  batch.targets -= item.labels;
  set_lengths(row, 0, 0);
  std::fill_n(audio_.begin() + row * s, s, 0);
  std::fill_n(labels_.begin() + row * u, u, kIgnoredTarget);
}

}  // namespace choir
