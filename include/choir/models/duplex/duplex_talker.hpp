#pragma once
// A duplex model in a dialogue: audio of the user in, and for each frame the text and the codes of
// the agent out, as soon as the encoder has the chunk that holds the frame. A function of the audio
// alone, however it comes in pieces.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "choir/data/dialogues/dialogue_channels.hpp"
#include "choir/infer/model_instance.hpp"
#include "choir/models/duplex/duplex_stream.hpp"

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

  /// Frames that a dialogue has at most, where the decoder has learnt positions. Else it goes on in
  /// the same memory, and sees the last block_size frames (DuplexRows).
  std::optional<std::int64_t> most_frames() const;
  const DuplexConfig& config() const { return stream_.config(); }
  const SpeechChunks& chunks() { return stream_.audio().chunks(); }

  /// Local: another dialogue begins.
  void begin();
  /// As of SpeechStream.
  std::int64_t room() { return stream_.audio().room(); }
  void push(std::span<const std::int16_t> audio) { stream_.audio().push(audio); }
  void end() { stream_.audio().end(); }
  bool ready() { return stream_.audio().ready(); }
  /// Collective as ModelInstance::forward(). The frames of the next chunk, in order. DeckError when
  /// the dialogue has more than most_frames().
  std::vector<AgentFrame> next();
  /// In a plan: as much memory as any frame takes. Another dialogue begins.
  void rehearse_fully();

 private:
  DialogueControls controls_;
  DuplexStream stream_;
  std::int32_t text_ = 0;
  std::vector<std::int32_t> codes_;
  bool speaking_ = false;
};

/// Local. DeckError that names `source` for a model of another family.
void require_talker(const ModelConfig& model, const std::string& source);

/// Local, by a dialogue of silence on the null device. DeckError when it needs more than `budget`
/// bytes on this rank.
StreamPlan plan_talk(const ModelInstance::Options& options, const Layout& layout, int rank,
                     double budget, const Device* target);

}  // namespace choir
