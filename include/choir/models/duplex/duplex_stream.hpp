#pragma once
// A duplex model in a dialogue that goes on: audio of the user comes bit by bit and becomes frames
// of the encoder, and with each frame, the last token and the last codes of the agent go in and the
// scores of the next ones come out. What is chosen from them is for the caller to say.
#include <cstdint>
#include <span>

#include "choir/infer/model_instance.hpp"
#include "choir/models/duplex/duplex_config.hpp"
#include "choir/models/fastconformer/speech_stream.hpp"

namespace choir {

class DuplexStream {
 public:
  /// Collective over the ranks that share parameters. `instance` of a whole Duplex, its parameters
  /// final. There is room for block_size frames.
  explicit DuplexStream(ModelInstance& instance);

  const DuplexConfig& config() const { return config_; }

  /// Local: another dialogue begins.
  void begin();
  /// The user's audio; next() gives frames [n, C_e] of the encoder.
  SpeechStream& audio() { return audio_; }
  /// Frames that step() has seen, and may see.
  std::int64_t seen() const { return rows_.seen(); }
  std::int64_t most() const { return config_.lm.block_size; }

  /// Collective as ModelInstance::forward(): the next frame. `heard`: [C_e], in the compute type,
  /// in memory of the device; `text`: the agent's token at this frame, `codes`: its K codes of the
  /// frame before, DELAY before the first. Logits of the next token, [V], and behind them of this
  /// frame's code in each codebook, [K (N + 3)]; until the arena is used again.
  Tensor step(const TensorView& heard, std::int32_t text, std::span<const std::int32_t> codes);

 private:
  Tensor on_device(const TensorView& host);

  ModelInstance* instance_;
  DuplexConfig config_;
  SpeechStream audio_;
  StreamState rows_;
};

}  // namespace choir
