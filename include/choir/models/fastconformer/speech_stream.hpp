#pragma once
// A speech model over audio that comes bit by bit: scores of frames chunk by chunk, those of the
// whole recording but for rounding (choir/models/fastconformer/speech_windows.hpp). Memory does not
// depend on how long the recording is.
#include <cstdint>
#include <span>
#include <vector>

#include "choir/infer/model_instance.hpp"
#include "choir/models/family.hpp"
#include "choir/models/fastconformer/speech_windows.hpp"
#include "choir/models/fastconformer/stream_plan.hpp"

namespace choir {

class SpeechStream {
 public:
  /// Collective over the ranks that share parameters. `instance` of a whole model that can be
  /// streamed, its parameters final, its arena of the size planned.
  explicit SpeechStream(ModelInstance& instance);
  /// `instance` may be of another family whose model has such an encoder, of which `state` is:
  /// next() then gives what the model makes of a batch of audio alone (Model::forward).
  SpeechStream(ModelInstance& instance, const FastConformerConfig& encoder, StreamState state);

  const SpeechChunks& chunks() const { return chunks_; }

  /// Local: another recording begins.
  void begin();
  /// Samples that may come before next() is asked for a chunk; 0 after end().
  std::int64_t room() const;
  void push(std::span<const std::int16_t> audio);
  /// The recording is all there.
  void end() { ended_ = true; }
  /// A chunk is complete, or after end() there is a last one.
  bool ready() const { return next_frames() > 0; }
  /// Collective as ModelInstance::forward(). Logits [frames, V + 1] of the next chunk, of a
  /// FastConformer.
  Tensor next();

 private:
  std::int64_t next_frames() const;
  std::int64_t total_frames() const { return config_.frames(received_); }
  /// The audio of `frames` frames from first_ on becomes the batch.
  ModelBatch fill_batch(std::int64_t lead, std::int64_t frames);
  Tensor on_device(const TensorView& host);

  ModelInstance* instance_;
  FastConformerConfig config_;
  SpeechChunks chunks_;
  HostBatch host_;
  StreamState state_;
  std::vector<std::int16_t> audio_;  ///< from frame chunks_.first_frame(chunk_) on
  std::int64_t held_ = 0, received_ = 0, chunk_ = 0;
  bool ended_ = false;
};

/// Local, by streaming silence on the null device. DeckError when it needs more than `budget`
/// bytes on this rank.
StreamPlan plan_stream(const ModelInstance::Options& options, const Layout& layout, int rank,
                       double budget, const Device* target);

}  // namespace choir
