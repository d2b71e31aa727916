#pragma once
// A dialogue with a duplex model: audio of the user is the input, and text and codes of the agent
// are the output for each frame, as soon as the encoder has the chunk of the frame. The output
// depends on the audio alone, not on how it is divided.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "choir/data/dialogues/dialogue_channels.hpp"
#include "choir/infer/model_instance.hpp"
#include "choir/models/duplex/duplex_stream.hpp"

namespace choir {

/// The agent's output for one frame.
struct AgentFrame {
  std::int64_t frame = 0;
  std::int32_t text = 0;            ///< token of the frame, chosen before its audio is known
  bool speaking = false;            ///< true from the frame of BOS up to that of EOS
  std::vector<std::int32_t> codes;  ///< [K] of its sound; control codes are silence
};

class DuplexTalker {
 public:
  /// Collective over the ranks that share parameters. `instance`: a whole streaming model with
  /// final parameters and an arena of the planned size (plan_talk).
  DuplexTalker(ModelInstance& instance, const DialogueControls& controls);

  /// The most frames of a dialogue, if the decoder has learned positions. Otherwise it is endless
  /// in the same memory, and sees the last block_size frames (DuplexRows).
  std::optional<std::int64_t> most_frames() const;
  const DuplexConfig& config() const { return stream_.config(); }
  const SpeechChunks& chunks() { return stream_.audio().chunks(); }

  /// Local. Starts a new dialogue.
  void begin();
  /// The functions of SpeechStream.
  std::int64_t room() { return stream_.audio().room(); }
  void push(std::span<const std::int16_t> audio) { stream_.audio().push(audio); }
  void end() { stream_.audio().end(); }
  bool ready() { return stream_.audio().ready(); }
  /// Collective like ModelInstance::forward(). Returns the frames of the next chunk, in order.
  /// DeckError if the dialogue exceeds most_frames().
  std::vector<AgentFrame> next();
  /// In a plan: uses as much memory as any frame. Starts a new dialogue.
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

/// Local. Plans by a dialogue of silence on the null device. DeckError if it needs more than
/// `budget` bytes on this rank.
StreamPlan plan_talk(const ModelInstance::Options& options, const Layout& layout, int rank,
                     double budget, const Device* target);

}  // namespace choir
