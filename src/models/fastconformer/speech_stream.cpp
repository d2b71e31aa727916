#include "src/models/fastconformer/speech_stream.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "choir/core/error.hpp"
#include "src/core/quantities.hpp"
#include "src/run/null_instance.hpp"

namespace choir {

StreamPlan measured_plan(ModelInstance& instance, double budget, const std::string& what) {
  MemoryPlan memory;
  instance.add_to(memory);
  if (static_cast<double>(memory.total()) > budget)
    throw DeckError(
        fmt::format("out of memory: {} needs {} with the parameters, but only {} are allowed", what,
                    format_bytes(static_cast<double>(memory.total())), format_bytes(budget)),
        "raise --memory, or divide the model with --tensor");
  return {.arena_bytes = instance.arena().peak(),
          .requests = instance.arena().requests(),
          .total_bytes = memory.total()};
}

namespace {

std::size_t size(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

/// The audio of the largest pass.
BatchShape largest(const SpeechChunks& chunks) {
  return {.samples = 1,
          .audio_samples = chunks.samples_of(chunks.overlap + chunks.frames),
          .labels = 1};
}

}  // namespace

SpeechStream::SpeechStream(ModelInstance& instance)
    : SpeechStream(instance, instance.options().model.as<FastConformerConfig>(),
                   instance.model().make_state(instance.pass(), 1)) {}

SpeechStream::SpeechStream(ModelInstance& instance, const FastConformerConfig& encoder,
                           StreamState state)
    : instance_(&instance),
      config_(encoder),
      chunks_(config_),
      host_(config_, largest(chunks_)),
      state_(std::move(state)),
      audio_(size(host_.batch["audio"].shape[1])) {}

void SpeechStream::begin() {
  state_.begin(instance_->stream());
  held_ = received_ = chunk_ = 0;
  ended_ = false;
}

std::int64_t SpeechStream::room() const {
  return ended_ ? 0 : chunks_.audio_end(chunk_) - received_;
}

void SpeechStream::push(std::span<const std::int16_t> audio) {
  CHOIR_CHECK(std::ssize(audio) <= room(), "{} samples where {} have room", audio.size(), room());
  std::copy(audio.begin(), audio.end(), audio_.begin() + held_);
  held_ += std::ssize(audio);
  received_ += std::ssize(audio);
}

std::int64_t SpeechStream::next_frames() const {
  if (!ended_) return received_ == chunks_.audio_end(chunk_) ? chunks_.frames : 0;
  return std::clamp(total_frames() - chunk_ * chunks_.frames, std::int64_t{0}, chunks_.frames);
}

ModelBatch SpeechStream::fill_batch(std::int64_t lead, std::int64_t frames) {
  const std::int64_t first = chunks_.first_frame(chunk_), all = lead + frames;
  ModelBatch batch = host_.batch;
  batch["audio"].shape = {1, chunks_.samples_of(all)};
  const std::int64_t samples = std::min(held_, batch["audio"].shape[1]);
  auto* const to = static_cast<std::int16_t*>(batch["audio"].data);
  std::copy_n(audio_.begin(), samples, to);
  std::fill(to + samples, to + batch["audio"].shape[1], std::int16_t{0});
  batch["audio_lengths"].as<std::int32_t>()[0] = static_cast<std::int32_t>(samples);
  for (int stage = 0; stage <= config_.stages(); ++stage) {
    // Length of a stage that the frames read; less if the recording ends within it.
    const std::int64_t step = config_.subsampling >> stage;
    std::int64_t length = step * (all - 1) + 1;
    if (ended_) length = std::min(length, config_.lengths_after(stage, received_) - first * step);
    batch["frame_lengths"].as<std::int32_t>()[stage] = static_cast<std::int32_t>(length);
  }
  return batch;
}

Tensor SpeechStream::on_device(const TensorView& host) {
  Device& device = instance_->device();
  if (device.host_visible()) return Tensor().view(host);
  Tensor there = instance_->arena().allocate(host.dtype, host.shape, "chunk of a stream");
  device.copy_from_host(there.data, host.data, host.bytes());
  return there;
}

Tensor SpeechStream::next() {
  const std::int64_t frames = next_frames();
  CHOIR_CHECK(frames > 0, "chunk {} is not complete", chunk_);
  const std::int64_t first = chunks_.first_frame(chunk_), lead = chunk_ * chunks_.frames - first;
  Arena& arena = instance_->arena();
  arena.begin_sequence();
  ModelBatch batch = fill_batch(lead, frames);
  std::array<Tensor, ModelBatch::kMostFields> there;
  std::size_t count = 0;
  for (BatchField& field : batch.fields())
    if (!field.view.empty()) field.view = there[count++] = on_device(field.view);
  instance_->pass().begin(Mode::generate, state_.next(frames), 0);
  Tensor logits = instance_->model().forward(instance_->pass(), 0, {}, batch);
  state_.advance(frames);
  arena.end_sequence();
  ++chunk_;
  const std::int64_t gone = (chunks_.first_frame(chunk_) - first) * chunks_.frame_samples;
  held_ = std::max<std::int64_t>(0, held_ - gone);
  std::memmove(audio_.data(), audio_.data() + gone, size(held_) * sizeof audio_.front());
  return logits;
}

StreamPlan plan_stream(const ModelInstance::Options& options, const Layout& layout, int rank,
                       double budget, const Device* target) {
  NullInstance instance(options, layout, rank, target);
  SpeechStream stream(*instance);
  rehearse(stream);
  return measured_plan(*instance, budget, "a stream");
}

}  // namespace choir
