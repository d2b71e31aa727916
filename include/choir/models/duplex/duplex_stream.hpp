#pragma once
// A duplex model in a dialogue that goes on: audio of the user comes bit by bit and becomes frames
// of the encoder, and with each frame, the last token and the last codes of the agent go in and the
// scores of the next ones come out. What is chosen from them is for the caller to say.
#include <cstdint>
#include <span>
#include <vector>

#include "choir/infer/model_instance.hpp"
#include "choir/models/duplex/duplex_config.hpp"
#include "choir/models/fastconformer/speech_stream.hpp"

namespace choir {

/// The language model of dialogues that go on together, a frame of each at a time.
class DuplexRows {
 public:
  /// For `dialogues` dialogues of at most `most` frames; 0: of any number, in memory for block_size
  /// of them, which is then what each frame sees: it is what a model would say whose layers all
  /// have windows of that size. Not for models that learn positions.
  DuplexRows(ModelInstance& instance, std::int64_t dialogues, std::int64_t most);

  /// Local: other dialogues begin.
  void begin();
  /// Frames that step() has seen of each, and whether it may see `more` of them.
  std::int64_t seen() const { return rows_.seen(); }
  bool has_room(std::int64_t more) const { return most_ == 0 || seen() + more <= most_; }

  /// Collective as ModelInstance::forward(): the next frame. `heard`: [B, C_e], in the compute
  /// type, in memory of the device; `text` [B]: the agent's token at this frame, `codes` [B, K]:
  /// its codes of the frame before, DELAY before the first. Of each dialogue the logits of the next
  /// token, and behind them of this frame's code in each codebook, [B, V + K (N + 3)]; until the
  /// arena is used again.
  Tensor step(const TensorView& heard, std::span<const std::int32_t> text,
              std::span<const std::int32_t> codes);
  /// In a plan: a frame that sees as many others as any. Other dialogues begin.
  void rehearse(const TensorView& heard);
  /// As step() does with parameters, without a dialogue: where ranks share them all must take
  /// equally many steps.
  static void walk_along(ModelInstance& instance, const TensorView& heard);
  /// Local. Replaces the tokens [B] and the codes [B, K] by those that score best.
  void choose(const TensorView& logits, std::span<std::int32_t> text,
              std::span<std::int32_t> codes);

 private:
  ModelInstance* instance_;
  DuplexConfig config_;
  std::int64_t most_;
  StreamState rows_;
  HostBuffer memory_;  // of scores on a GPU
  std::vector<float> scores_;
};

class DuplexStream {
 public:
  /// Collective over the ranks that share parameters. `instance` of a whole Duplex, its parameters
  /// final. Endless, but for a model that learns positions: then there is room for block_size
  /// frames.
  explicit DuplexStream(ModelInstance& instance);

  const DuplexConfig& config() const { return config_; }

  /// Local: another dialogue begins.
  void begin() {
    audio_.begin();
    rows_.begin();
  }
  /// The user's audio; next() gives frames [n, C_e] of the encoder.
  SpeechStream& audio() { return audio_; }
  DuplexRows& rows() { return rows_; }
  const DuplexRows& rows() const { return rows_; }
  /// In a plan: the frame of a dialogue that needs most. Another dialogue begins.
  void rehearse();

 private:
  ModelInstance* instance_;
  DuplexConfig config_;
  SpeechStream audio_;
  DuplexRows rows_;
};

}  // namespace choir
