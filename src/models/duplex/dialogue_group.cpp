#include "src/models/duplex/dialogue_group.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <optional>

#include "choir/ops/copy_rows.hpp"
#include "src/models/duplex/duplex.hpp"

namespace choir {
namespace {

/// A copy of some rows of a micro-batch's audio.
class RecordingBatch {
 public:
  RecordingBatch(const ModelBatch& whole, std::span<const std::int64_t> rows) {
    const std::int64_t count = std::ssize(rows), all = whole["audio"].shape[0];
    const std::int64_t width = whole["audio"].shape[1], stages = whole["frame_lengths"].shape[0];
    audio_.resize(static_cast<std::size_t>(count * width));
    lengths_.resize(static_cast<std::size_t>(count));
    frame_lengths_.resize(static_cast<std::size_t>(stages * count));
    ids_.resize(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = rows[static_cast<std::size_t>(i)];
      std::copy_n(whole["audio"].as<std::uint16_t>() + row * width, width,
                  audio_.begin() + i * width);
      lengths_[static_cast<std::size_t>(i)] = whole["audio_lengths"].as<std::int32_t>()[row];
      ids_[static_cast<std::size_t>(i)] = whole["sample_ids"].as<std::int64_t>()[row];
      for (std::int64_t stage = 0; stage < stages; ++stage)
        frame_lengths_[static_cast<std::size_t>(stage * count + i)] =
            whole["frame_lengths"].as<std::int32_t>()[stage * all + row];
    }
    batch.samples = count;
    batch.add({.name = "audio", .view = {audio_.data(), DType::u16, {count, width}}});
    batch.add({.name = "audio_lengths", .view = {lengths_.data(), DType::i32, {count}}});
    batch.add(
        {.name = "frame_lengths", .view = {frame_lengths_.data(), DType::i32, {stages, count}}});
    batch.add({.name = "sample_ids", .view = {ids_.data(), DType::i64, {count}}});
  }
  RecordingBatch(const RecordingBatch&) = delete;
  RecordingBatch& operator=(const RecordingBatch&) = delete;

  ModelBatch batch;

 private:
  std::vector<std::uint16_t> audio_;
  std::vector<std::int32_t> lengths_, frame_lengths_;
  std::vector<std::int64_t> ids_;
};

}  // namespace

Tensor DialogueGroup::hear(const ModelBatch& whole, std::span<const std::int64_t> rows) {
  Device& device = instance_.device();
  const RecordingBatch host(whole, rows);
  ModelBatch batch = host.batch;
  std::array<Tensor, ModelBatch::kMostFields> held;
  std::size_t count = 0;
  for (BatchField& field : batch.fields()) {
    if (device.host_visible()) continue;
    Tensor& there = held[count++];
    there = instance_.arena().allocate(field.view.dtype, field.view.shape, "recordings");
    device.copy_from_host(there.data, field.view.data, field.view.bytes());
    field.view = there;
  }
  instance_.as<Duplex>().begin_hearing(instance_.pass(), batch);
  const Tensor frames =
      instance_.model().forward(instance_.pass(), 0, {}, batch, instance_.hooks());
  const std::int64_t dialogues = std::ssize(rows), width = frames.shape.back();
  return frames.view(frames.reshaped({dialogues, frames.shape.rows() / dialogues, width}));
}

Tensor DialogueGroup::frame_at(const Tensor& heard, std::int64_t t) {
  const std::int64_t dialogues = heard.shape[0], frames = heard.shape[1], width = heard.shape[2];
  t = std::min(t, frames - 1);
  Tensor row = instance_.pass().allocate({dialogues, width}, "frame of dialogues");
  const TensorView from = heard.reshaped({dialogues * frames, width}).slice(t, 1);
  ops::copy_rows(instance_.stream(), heard.dtype, dialogues, width, {from.data, frames * width},
                 {row.data, width});
  return row;
}

std::vector<SaidDialogue> DialogueGroup::talk(const ModelBatch& batch,
                                              std::span<const std::int64_t> rows,
                                              std::span<const std::int64_t> frames) {
  const DuplexConfig& config = instance_.as<Duplex>().config();
  // The sound of the last frame in the longest dialogue may be beyond the model's positions.
  const std::int64_t own =
      rows.empty() ? 0 : std::min(*std::ranges::max_element(frames), config.lm.block_size);
  std::int64_t steps = own;
  if (instance_.storage().sharding().values_sharded())
    instance_.mesh().world().all_reduce(&steps, 1, DType::i64, ReduceOp::max);
  std::vector<SaidDialogue> said(rows.size(), {.text = {controls_.pad}, .codes = {}});
  if (steps == 0) return said;
  // A rank without a dialogue of its own encodes one that it does not answer.
  constexpr std::int64_t kAny = 0;
  const std::span<const std::int64_t> heard_rows = rows.empty() ? std::span(&kAny, 1) : rows;
  const Tensor heard = hear(batch, heard_rows);
  const std::int64_t count = std::ssize(heard_rows), books = config.codebooks;
  std::vector<std::int32_t> text(rows.size(), controls_.pad);
  std::vector<std::int32_t> codes(rows.size() * static_cast<std::size_t>(books),
                                  static_cast<std::int32_t>(config.delay_code()));
  std::optional<DuplexRows> dialogues;
  if (own > 0) dialogues.emplace(instance_, count, own);
  for (std::int64_t t = 0; t < own; ++t) {
    dialogues->choose(dialogues->step(frame_at(heard, t), text, codes), text, codes);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      said[i].text.push_back(text[i]);
      const auto first = codes.begin() + static_cast<std::ptrdiff_t>(i) * books;
      said[i].codes.insert(said[i].codes.end(), first, first + books);
    }
  }
  dialogues.reset();
  for (std::int64_t t = own; t < steps; ++t)
    DuplexRows::walk_along(instance_, frame_at(heard, t).slice(0, 1));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    said[i].text.resize(static_cast<std::size_t>(frames[i]));
    said[i].codes.resize(static_cast<std::size_t>(frames[i] * books),
                         static_cast<std::int32_t>(config.delay_code()));
  }
  return said;
}

void DialogueGroup::rehearse(const ModelBatch& batch) {
  const DuplexConfig& config = instance_.as<Duplex>().config();
  const std::int64_t count = batch.samples;
  std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), std::int64_t{0});
  const Tensor heard = hear(batch, rows);
  DuplexRows dialogues(instance_, count, std::min(batch.tokens + 1, config.lm.block_size));
  dialogues.rehearse(frame_at(heard, 0));
  DuplexRows::walk_along(instance_, frame_at(heard, 0).slice(0, 1));
}

}  // namespace choir
