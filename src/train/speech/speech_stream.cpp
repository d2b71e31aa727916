#include "choir/train/speech/speech_stream.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>

#include "choir/model/fastconformer.hpp"

namespace choir {
namespace {

std::size_t size(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

FastConformer& speech_model(ModelInstance& instance) {
  auto* const model = dynamic_cast<FastConformer*>(&instance.model());
  CHOIR_CHECK(model != nullptr, "this model hears nothing");
  return *model;
}

/// Audio of the most frames of one pass.
BatchShape largest(const SpeechChunks& chunks) {
  return {.samples = 1,
          .audio_samples = chunks.samples_of(chunks.overlap + chunks.frames),
          .labels = 1};
}

}  // namespace

struct SpeechStream::Past {
  SpeechPast blocks;
};

SpeechStream::SpeechStream(ModelInstance& instance)
    : instance_(&instance),
      model_(&speech_model(instance)),
      config_(instance.options().model.fastconformer()),
      chunks_(config_),
      host_(config_, largest(chunks_)),
      audio_(size(host_.batch.audio.shape[1])) {
  Pass& pass = instance.pass();
  pass.begin(Mode::generate, {.batch = 1, .tokens = chunks_.frames}, 0);
  past_ = std::make_unique<Past>(Past{model_->make_past(pass, instance.hooks())});
}

SpeechStream::~SpeechStream() = default;

void SpeechStream::begin() {
  model_->begin(instance_->pass(), past_->blocks);
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
  batch.audio.shape = {1, chunks_.samples_of(all)};
  const std::int64_t samples = std::min(held_, batch.audio.shape[1]);
  auto* const to = static_cast<std::int16_t*>(batch.audio.data);
  std::copy_n(audio_.begin(), samples, to);
  std::fill(to + samples, to + batch.audio.shape[1], std::int16_t{0});
  batch.audio_lengths.as<std::int32_t>()[0] = static_cast<std::int32_t>(samples);
  for (int stage = 0; stage <= config_.stages(); ++stage) {
    // What the frames read of a stage; less where the recording ends in it.
    const std::int64_t step = config_.subsampling >> stage;
    std::int64_t length = step * (all - 1) + 1;
    if (ended_) length = std::min(length, config_.lengths_after(stage, received_) - first * step);
    batch.frame_lengths.as<std::int32_t>()[stage] = static_cast<std::int32_t>(length);
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
  ModelBatch from = fill_batch(lead, frames), batch = from;
  const auto froms = from.fields(), tos = batch.fields();
  std::array<Tensor, std::tuple_size_v<decltype(froms)>> there;
  for (std::size_t f = 0; f < froms.size(); ++f) {
    if (froms[f]->empty()) continue;
    there[f] = on_device(*froms[f]);
    *tos[f] = there[f];
  }
  Tensor logits = model_->forward_chunk(instance_->pass(), batch, {lead, frames}, past_->blocks,
                                        instance_->hooks());
  arena.end_sequence();
  ++chunk_;
  const std::int64_t gone = (chunks_.first_frame(chunk_) - first) * chunks_.frame_samples;
  held_ = std::max<std::int64_t>(0, held_ - gone);
  std::memmove(audio_.data(), audio_.data() + gone, size(held_) * sizeof audio_.front());
  return logits;
}

}  // namespace choir
