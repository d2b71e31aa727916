#pragma once
// A small duplex model in fp64, and dialogues that are functions of a number.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/philox.hpp"
#include "choir/models/family.hpp"
#include "choir/run/model_instance.hpp"
#include "src/device/cpu_device.hpp"
#include "src/models/duplex/duplex_batch.hpp"

namespace choir::test {

inline DuplexConfig small_duplex() {
  DuplexConfig config;
  config.encoder = {.n_layer = 1,
                    .n_embd = 8,
                    .n_head = 2,
                    .conv_kernel = 3,
                    .subsampling = 2,
                    .subsampling_channels = 3,
                    .causal = true,
                    .context_style = ContextStyle::chunked,
                    .left_context = 4,
                    .right_context = 1,
                    .dropout = 0,
                    .normalise = false};
  config.encoder.mel.mels = 10;
  config.encoder.augment.frequency_masks = config.encoder.augment.time_masks = 0;
  config.lm = {.vocab_size = 32,
               .block_size = 24,
               .n_layer = 2,
               .n_head = 2,
               .n_kv_head = 1,
               .n_embd = 12,
               .ffn_width = 16,
               .dropout = 0,
               .position = Position::rope};
  config.codebooks = 2, config.codes = 5;
  config.user_weight = 0.8;
  config.complete();
  return config;
}

struct Dialogue {
  std::int64_t id = 0, frames = 0;
};

/// Everything in a dialogue is a function of its id; data behind its end is not read.
class Talking {
 public:
  explicit Talking(const DuplexConfig& config)
      : config_(config),
        mesh_(Mesh::planned(Layout(), 0, 1)),
        instance_({config, precision_of("fp64"), 7, true}, device_, *mesh_, std::size_t{64} << 20) {
    instance_.initialise(7);
    for (Parameter& p : parameters())
      for (std::int64_t i = 0; i < p.local_count(); ++i)
        p.master.as<double>()[i] =
            (p.name.ends_with("norm.weight") ? 1 : 0) +
            0.3 * normal_at(philox_key(3, p.name), static_cast<std::uint64_t>(i));
    instance_.publish();
  }

  std::deque<Parameter>& parameters() { return instance_.parameters().parameters(); }
  ModelInstance& instance() { return instance_; }
  const DuplexConfig& config() const { return config_; }

  /// Rows of at least `rows` frames. `poison`: numbers in the padding that must not be read.
  ModelBatch batch(const std::vector<Dialogue>& dialogues, std::int64_t rows = 0,
                   bool poison = false) {
    for (const Dialogue& d : dialogues) rows = std::max(rows, d.frames);
    const std::int64_t frame = config_.encoder.speech_frames().multiple();
    memory_ = std::make_unique<HostBatch>(
        config_, BatchShape{.samples = std::ssize(dialogues),
                            .tokens = rows,
                            .audio_samples = (rows + (poison ? 1 : 0)) * frame});
    memory_->clear();
    ModelBatch& batch = memory_->batch;
    for (std::size_t row = 0; row < dialogues.size(); ++row)
      fill(batch, static_cast<std::int64_t>(row), dialogues[row], poison);
    hear_frames(config_, batch);
    batch.scale = 1.0 / 7;
    return batch;
  }

  /// Losses [2, rows * K].
  std::vector<double> losses(Mode mode, const ModelBatch& batch) {
    Pass& pass = instance_.pass();
    instance_.model().begin(pass, mode, batch);
    const Tensor losses = instance_.model().forward(pass, 0, Tensor(), batch);
    std::vector<double> list(losses.as<double>(), losses.as<double>() + losses.count());
    if (mode != Mode::train) return list;
    for (const Bucket& bucket : instance_.parameters().buckets())
      instance_.storage().begin_gradients(instance_.stream(), bucket);
    instance_.model().backward(pass, 0, Tensor(), batch);
    return list;
  }

  /// The losses of one row of such a batch: first of text, then of codes.
  std::vector<double> losses_of(const std::vector<double>& all, const ModelBatch& batch,
                                std::int64_t row, std::int64_t frames) const {
    const std::int64_t books = config_.codebooks, half = std::ssize(all) / 2;
    std::vector<double> list;
    for (std::int64_t t = 0; t < frames; ++t)
      list.push_back(all[static_cast<std::size_t>(row * batch.tokens + t)]);
    for (std::int64_t i = 0; i < frames * books; ++i)
      list.push_back(all[static_cast<std::size_t>(half + row * batch.tokens * books + i)]);
    return list;
  }

  std::int64_t drawn(std::int64_t id, std::int64_t place, std::int64_t below) const {
    return static_cast<std::int64_t>(philox_at(philox_key(11, "dialogue"),
                                               static_cast<std::uint64_t>(id),
                                               static_cast<std::uint64_t>(place))[0] %
                                     static_cast<std::uint64_t>(below));
  }
  static std::int16_t sample(std::int64_t id, std::int64_t at) {
    return static_cast<std::int16_t>(
        3000 * normal_at(philox_key(5, "audio"), static_cast<std::uint64_t>(id * 100'000 + at)));
  }

 private:
  void fill(ModelBatch& batch, std::int64_t row, const Dialogue& d, bool poison) const {
    const std::int64_t books = config_.codebooks, rows = batch.samples;
    const std::int64_t width = batch["audio"].shape[1];
    const std::int64_t samples = d.frames * config_.encoder.speech_frames().multiple();
    auto* audio = static_cast<std::int16_t*>(batch["audio"].data) + row * width;
    for (std::int64_t i = 0; i < width; ++i)
      audio[i] = i < samples ? sample(d.id, i) : static_cast<std::int16_t>(poison ? 9999 : 0);
    batch["audio_lengths"].as<std::int32_t>()[row] = static_cast<std::int32_t>(samples);
    for (int stage = 0; stage <= config_.encoder.stages(); ++stage)
      batch["frame_lengths"].as<std::int32_t>()[stage * rows + row] =
          static_cast<std::int32_t>(config_.encoder.lengths_after(stage, samples));
    batch["sample_ids"].as<std::int64_t>()[row] = d.id;
    batch["dialogue_ids"].as<std::int64_t>()[row] = d.id;
    for (std::int64_t t = 0; t < batch.tokens; ++t) {
      const std::int64_t at = row * batch.tokens + t;
      const bool real = t < d.frames;
      const auto id = [&](std::int64_t place, std::int64_t below) {
        return static_cast<std::int32_t>(drawn(d.id, 100 * t + place, below));
      };
      batch["text"].as<std::int32_t>()[at] = real ? id(0, config_.lm.vocab_size) : poison ? 3 : 0;
      batch["text_targets"].as<std::int32_t>()[at] = real ? id(1, config_.lm.vocab_size) : -1;
      batch["text_weights"].as<float>()[at] = real     ? 0.25F * static_cast<float>(id(2, 5))
                                              : poison ? 1e30F
                                                       : 0.0F;
      for (std::int64_t k = 0; k < books; ++k) {
        batch["codes"].as<std::int32_t>()[at * books + k] = real ? id(10 + k, config_.code_ids())
                                                            : poison ? 2
                                                                     : 0;
        batch["code_targets"].as<std::int32_t>()[at * books + k] =
            real ? id(20 + k, config_.code_ids()) : -1;
      }
    }
  }
  DuplexConfig config_;
  CpuDevice device_;
  std::unique_ptr<Mesh> mesh_;
  ModelInstance instance_;
  std::unique_ptr<HostBatch> memory_;
};

inline double sum_of_losses(const std::vector<double>& list) {
  double sum = 0;
  for (const double x : list) sum += x;
  return sum;
}

}  // namespace choir::test
