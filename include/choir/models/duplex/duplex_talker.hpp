#pragma once
// A duplex model in a dialogue: audio of the user in, and for each frame the text and the codes of
// the agent out, as soon as the encoder has the chunk that holds the frame. A function of the audio
// alone, however it comes in pieces.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "choir/data/dialogues/dialogue_channels.hpp"
#include "choir/infer/model_instance.hpp"
#include "choir/models/fastconformer/speech_stream.hpp"

namespace choir {

/// What the agent does in one frame.
struct AgentFrame {
  std::int64_t frame = 0;
  std::int32_t text = 0;            ///< the token of the frame, said before anything of it is heard
  bool speaking = false;            ///< from the frame of BOS up to that of EOS
  std::vector<std::int32_t> codes;  ///< [K] of its sound; codes of control are silence
};

class DuplexTalker {
 public:
  /// Collective over the ranks that share parameters. `instance` of a whole model that can be
  /// streamed, its parameters final, its arena of the size planned (plan_talk).
  DuplexTalker(ModelInstance& instance, const DialogueControls& controls);

  /// Frames that a dialogue has at most: the positions of the decoder.
  std::int64_t most_frames() const;
  const SpeechChunks& chunks() const { return hearing_.chunks(); }

  /// Local: another dialogue begins.
  void begin();
  /// As of SpeechStream.
  std::int64_t room() const { return hearing_.room(); }
  void push(std::span<const std::int16_t> audio) { hearing_.push(audio); }
  void end() { hearing_.end(); }
  bool ready() const { return hearing_.ready(); }
  /// Collective as ModelInstance::forward(). The frames of the next chunk, in order. DeckError when
  /// the dialogue has more than most_frames().
  std::vector<AgentFrame> next();

 private:
  /// The next token of text and the codes of this frame, by the row `heard` [C_e] of the encoder.
  void step(const TensorView& heard);
  void choose(const TensorView& logits);

  ModelInstance& instance_;
  DialogueControls controls_;
  SpeechStream hearing_;
  StreamState said_;
  std::int64_t frame_ = 0;
  std::int32_t text_ = 0;
  std::vector<std::int32_t> codes_;
  bool speaking_ = false;
  std::vector<std::byte> heard_;
  std::vector<float> scores_;
};

/// Local, by a dialogue of silence on the null device. DeckError when it needs more than `budget`
/// bytes on this rank.
StreamPlan plan_talk(const ModelInstance::Options& options, const Layout& layout, int rank,
                     double budget, const Device* target);

}  // namespace choir
