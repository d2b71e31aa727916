#pragma once
// Dialogues frame by frame. Targets and inputs of a full-duplex model: the agent's text and codes
// as two channels with frames of 80 ms, after Hu et al. 2025 (arXiv 2505.15670); these functions
// are pure, and positions are counts of samples, never floating-point times. A folder of packed
// dialogues has user/ and agent/, packed speech of both sides, recording for recording, and
// dialogues.json, which is written last. The labels in user/ are the agent's text channel, one
// token for every frame, and its manifest has the turns; agent/ also holds the codes of its audio.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "src/data/dialogues/code_file.hpp"

namespace choir {

/// Converts samples to frames of 80 ms. Samples are rounded to the nearest frame, halves up: an
/// event in the first half of a frame belongs to the start of this frame.
struct FrameClock {
  int sample_rate = 16000;
  std::int64_t hop() const { return (sample_rate * std::int64_t{8} + 50) / 100; }
  std::int64_t frames(std::int64_t samples) const { return (samples + hop() / 2) / hop(); }
  /// The sample nearest to a time (halves up), and its frame.
  std::int64_t samples(double seconds) const;
  std::int64_t frame_at(double seconds) const { return frames(samples(seconds)); }
};

/// Tokens of the text channel that are not words. `pad` fills the frames in which the agent is
/// silent, and those in which it still speaks after the end of its text.
struct DialogueControls {
  std::int32_t pad = 0, bos = 1, eos = 2;
  /// Throws DeckError if two are equal (every frame of silence would begin or end a turn) or if one
  /// is not below `vocab_size`.
  void check(std::int64_t vocab_size) const;
  friend bool operator==(const DialogueControls&, const DialogueControls&) = default;
};

/// A turn in frames: BOS is at `begin`, EOS at `end`.
struct FrameTurn {
  std::int64_t begin = 0, end = 0;
  std::vector<std::int32_t> ids;
  friend bool operator==(const FrameTurn&, const FrameTurn&) = default;
};

struct TextChannel {
  std::vector<std::int32_t> tokens;  ///< one per frame
  std::int64_t cut = 0;              ///< tokens of text that did not fit into their turns
  std::int64_t worst = -1;           ///< the turn that lost most tokens; -1: none
  std::int64_t worst_cut = 0;        ///< number of tokens that it lost
};

/// The text channel of `frames` frames. BOS and the text are cut to the frames of their turn, so
/// that EOS never replaces text. A turn that begins before the end of an earlier one ends it one
/// frame before its own start: the earlier turn loses text but keeps its EOS; if no frame remains,
/// it is dropped entirely. EOS beyond the last frame means an unfinished turn. `turns` must be
/// ordered by their beginnings, else Error.
TextChannel text_channel(std::span<const FrameTurn> turns, std::int64_t frames,
                         const DialogueControls& controls);

/// The turns in a channel, their text without padding. A turn without EOS ends at the next BOS or
/// at the end of the channel.
std::vector<FrameTurn> turns_of(std::span<const std::int32_t> channel,
                                const DialogueControls& controls);

/// Control codes of every codebook: N, N + 1 and N + 2 after the N codes of sound.
struct CodeControls {
  std::int32_t bos = 0, eos = 0, delay = 0;
  static CodeControls behind(std::int64_t codes) {
    const auto n = static_cast<std::int32_t>(codes);
    return {n, n + 1, n + 2};
  }
};

/// Destination of the rows of one dialogue, each of `rows` frames: text [rows], codes [rows, K].
struct DialogueRows {
  std::span<std::int32_t> text, text_targets, codes, code_targets;
};
inline constexpr std::int32_t kNoTarget = -1;

/// Fills the steps of a dialogue of T frames. Codes are replaced by BOS and EOS in the frames where
/// the text has them, and are delayed by one frame, beginning with DELAY: c'[0] = DELAY, c'[t] =
/// c[t-1]. Step t = 0 ... T - 2 reads text[t] and c'[t] and predicts text[t+1] and c'[t+1] = c[t].
/// The remaining rows are padding: 0 without a target. `codes` is [>= T, K] of sound. Throws Error
/// if T - 1 > rows.
void fill_dialogue_rows(std::span<const std::int32_t> text, std::span<const std::uint16_t> codes,
                        const DialogueControls& controls, const CodeControls& code_controls,
                        const DialogueRows& to);

/// The meaning of the tokens of a folder, from its dialogues.json.
struct DialogueForm {
  std::string units;             ///< NAME of user/labels.NAME.bin and user/tokenizer.NAME.json
  std::int64_t vocab_size = 0;   ///< includes the control tokens
  std::uint64_t vocab_hash = 0;  ///< of the units without control tokens
  DialogueControls controls;
  friend bool operator==(const DialogueForm&, const DialogueForm&) = default;

  /// Local. Throws DataError if the folder has no packed dialogues (naming `choir prepare
  /// dialogues`) or if they are damaged.
  static DialogueForm read(const std::string& folder);
  /// The JSON in dialogues.json and in checkpoints.
  nlohmann::ordered_json json() const;
  /// The hash of units and controls. Labels are marked with it, so that they are never taken for
  /// labels of speech.
  std::uint64_t hash() const;
  /// "dialogues.json", "user" and "agent" in a folder.
  static std::string path(const std::string& folder) { return folder + "/dialogues.json"; }
  static std::string user(const std::string& folder) { return folder + "/user"; }
  static std::string agent(const std::string& folder) { return folder + "/agent"; }
};

/// The description of a model's inputs and outputs in a checkpoint.
struct DialogueMeaning {
  DialogueForm form;
  std::string tokenizer;   ///< the units, Vocabulary::to_json()
  CodecDescription codec;  ///< of the codes
  /// {"dialogues": ..., "tokenizer": ...}, which Vocabulary::from_json() reads as the units.
  std::string to_json() const;
  /// Throws DataError that names `source`.
  static DialogueMeaning from_json(const std::string& json, const std::string& source);
};

}  // namespace choir
