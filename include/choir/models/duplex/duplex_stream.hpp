#pragma once
// A duplex model in a dialogue in progress. Audio of the user arrives in parts and is converted to
// frames of the encoder. Each step reads a frame, the agent's last token and its last codes, and
// returns the scores of the next ones, from which the caller chooses.
#include <cstdint>
#include <span>
#include <vector>

#include "choir/infer/model_instance.hpp"
#include "choir/models/duplex/duplex_config.hpp"
#include "choir/models/fastconformer/speech_stream.hpp"

namespace choir {

/// The language model of several dialogues that advance together, one frame of each at a time.
class DuplexRows {
 public:
  /// For `dialogues` dialogues of at most `most` frames; 0: of any number, in memory for block_size
  /// frames. Each frame then sees the last block_size frames, as if all layers of the model had
  /// windows of that size. Not for models with learned positions.
  DuplexRows(ModelInstance& instance, std::int64_t dialogues, std::int64_t most);

  /// Local. Starts new dialogues.
  void begin();
  /// The frames that step() has processed of each dialogue, and true if `more` still fit.
  std::int64_t seen() const { return rows_.seen(); }
  bool has_room(std::int64_t more) const { return most_ == 0 || seen() + more <= most_; }

  /// Collective like ModelInstance::forward(). Processes the next frame. `heard`: [B, C_e] in the
  /// compute type, in device memory; `text` [B]: the agent's token of this frame; `codes` [B, K]:
  /// its codes of the previous frame, DELAY before the first. Returns for each dialogue the logits
  /// of the next token and after them those of this frame's code in each codebook, [B, V + K (N +
  /// 3)]; they are valid until the arena is used again.
  Tensor step(const TensorView& heard, std::span<const std::int32_t> text,
              std::span<const std::int32_t> codes);
  /// In a plan: processes a frame that sees the maximum number of other frames. Starts new
  /// dialogues.
  void rehearse(const TensorView& heard);
  /// Runs the passes of step() without a dialogue: ranks that share parameters must all run the
  /// same number of steps.
  static void walk_along(ModelInstance& instance, const TensorView& heard);
  /// Local. Replaces the tokens [B] and the codes [B, K] by those with the best scores.
  void choose(const TensorView& logits, std::span<std::int32_t> text,
              std::span<std::int32_t> codes);

 private:
  ModelInstance* instance_;
  DuplexConfig config_;
  std::int64_t most_;
  StreamState rows_;
  HostBuffer memory_;  // host memory for scores of a GPU
  std::vector<float> scores_;
};

class DuplexStream {
 public:
  /// Collective over the ranks that share parameters. `instance`: a whole Duplex with final
  /// parameters. Dialogues are endless, except for a model with learned positions, which is limited
  /// to block_size frames.
  explicit DuplexStream(ModelInstance& instance);

  const DuplexConfig& config() const { return config_; }

  /// Local. Starts a new dialogue.
  void begin() {
    audio_.begin();
    rows_.begin();
  }
  /// The user's audio; its next() returns frames [n, C_e] of the encoder.
  SpeechStream& audio() { return audio_; }
  DuplexRows& rows() { return rows_; }
  const DuplexRows& rows() const { return rows_; }
  /// In a plan: processes the frame of a dialogue that needs most memory. Starts a new dialogue.
  void rehearse();

 private:
  ModelInstance* instance_;
  DuplexConfig config_;
  SpeechStream audio_;
  DuplexRows rows_;
};

}  // namespace choir
