#pragma once
// A speech model on audio that arrives in parts: scores of frames chunk by chunk, equal to those of
// the whole recording except for rounding (src/models/fastconformer/speech_windows.hpp). Memory
// does not depend on the length of the recording; its plan is the memory that a stream of silence
// uses on the null device.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "choir/models/family.hpp"
#include "choir/run/model_instance.hpp"
#include "src/models/fastconformer/speech_windows.hpp"

namespace choir {

struct StreamPlan {
  std::size_t arena_bytes = 0;
  std::vector<std::size_t> requests;  ///< see Arena::requests
  std::size_t total_bytes = 0;        ///< with parameters
};

/// Local. The memory that `instance` has used until now. DeckError if it exceeds `budget` bytes;
/// `what` names the user of the memory, "a stream".
StreamPlan measured_plan(ModelInstance& instance, double budget, const std::string& what);

/// Local. Streams a number of samples of silence, chunk by chunk, to its end.
template <class Stream>
void stream_silence(Stream& stream, std::int64_t samples) {
  stream.begin();
  for (;;) {
    const std::vector<std::int16_t> silence(
        static_cast<std::size_t>(std::min(samples, stream.room())));
    stream.push(silence);
    samples -= std::ssize(silence);
    if (samples == 0) stream.end();
    if (!stream.ready()) return;
    stream.next();
  }
}

/// Local. Streams recordings that end with each number of frames in a chunk, both in the first
/// chunk and when all caches are full; none has more than `most_frames`.
template <class Stream>
void rehearse(Stream& stream, std::int64_t most_frames = std::numeric_limits<std::int64_t>::max()) {
  const auto& chunks = stream.chunks();
  const std::int64_t warm = (chunks.past / chunks.frames + chunks.overlap) * chunks.frames;
  for (const std::int64_t before : {std::int64_t{0}, warm})
    for (std::int64_t frames = chunks.frames; frames > 0; --frames)
      stream_silence(stream, chunks.samples_of(std::min(before + frames, most_frames)));
}

class SpeechStream {
 public:
  /// Collective over the ranks that share parameters. `instance`: a whole streaming model with
  /// final parameters and an arena of the planned size.
  explicit SpeechStream(ModelInstance& instance);
  /// `instance` may belong to another family whose model has such an encoder, with `state` as its
  /// stream state: next() then returns the model's result for a batch of audio alone
  /// (Model::forward).
  SpeechStream(ModelInstance& instance, const FastConformerConfig& encoder, StreamState state);

  const SpeechChunks& chunks() const { return chunks_; }

  /// Local. Starts another recording.
  void begin();
  /// Samples that can be added before next() must be called; 0 after end().
  std::int64_t room() const;
  void push(std::span<const std::int16_t> audio);
  /// Marks the end of the recording.
  void end() { ended_ = true; }
  /// True if a chunk is complete, or if a last one remains after end().
  bool ready() const { return next_frames() > 0; }
  /// Collective like ModelInstance::forward(). Returns the logits [frames, V + 1] of the next
  /// chunk, for a FastConformer.
  Tensor next();

 private:
  std::int64_t next_frames() const;
  std::int64_t total_frames() const { return config_.frames(received_); }
  /// Copies the audio of `frames` frames from first_ on to the batch.
  ModelBatch fill_batch(std::int64_t lead, std::int64_t frames);
  Tensor on_device(const TensorView& host);

  ModelInstance* instance_;
  FastConformerConfig config_;
  SpeechChunks chunks_;
  HostBatch host_;
  StreamState state_;
  std::vector<std::int16_t> audio_;  ///< samples from frame chunks_.first_frame(chunk_) on
  std::int64_t held_ = 0, received_ = 0, chunk_ = 0;
  bool ended_ = false;
};

/// Local. Plans by streaming silence on the null device. DeckError if it needs more than `budget`
/// bytes on this rank.
StreamPlan plan_stream(const ModelInstance::Options& options, const Layout& layout, int rank,
                       double budget, const Device* target);

}  // namespace choir
