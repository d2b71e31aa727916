#pragma once
// A dialogue with a duplex model: audio of the user arrives in parts and is converted to frames of
// the encoder. For each frame the language model reads the agent's last token and codes, and
// returns the next ones. The output depends on the audio alone, not on how it is divided.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "choir/run/model_instance.hpp"
#include "src/data/dialogues/dialogue_channels.hpp"
#include "src/models/duplex/duplex_config.hpp"
#include "src/models/fastconformer/speech_stream.hpp"

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
