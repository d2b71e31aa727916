#pragma once
// What a full-duplex model learns of a dialogue, frame by frame: the agent's text and codes as two
// channels on the clock of frames of 80 ms, and the inputs and targets of its steps. After Hu et
// al. 2025 (arXiv 2505.15670). Pure functions; counts of samples only, no times in floats.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace choir {

/// Frames of 80 ms. Samples are counted into the nearest frame, halves up, so that what ends within
/// the first half of a frame ends before it.
struct FrameClock {
  int sample_rate = 16000;
  std::int64_t hop() const { return (sample_rate * std::int64_t{8} + 50) / 100; }
  std::int64_t frames(std::int64_t samples) const { return (samples + hop() / 2) / hop(); }
  /// The sample nearest to a time, halves up, and its frame.
  std::int64_t samples(double seconds) const;
  std::int64_t frame_at(double seconds) const { return frames(samples(seconds)); }
};

/// Tokens of the text channel that are no words. `pad` is said where the agent is silent, and where
/// it speaks but its text has been said.
struct DialogueControls {
  std::int32_t pad = 0, bos = 1, eos = 2;
  /// Throws DeckError where two are equal (every frame of silence would begin or end a turn) or one
  /// is not below `vocab_size`.
  void check(std::int64_t vocab_size) const;
  friend bool operator==(const DialogueControls&, const DialogueControls&) = default;
};

/// A turn in frames: it begins with BOS at `begin` and is over, with EOS, at `end`.
struct FrameTurn {
  std::int64_t begin = 0, end = 0;
  std::vector<std::int32_t> ids;
  friend bool operator==(const FrameTurn&, const FrameTurn&) = default;
};

struct TextChannel {
  std::vector<std::int32_t> tokens;  ///< one a frame
  std::int64_t cut = 0;              ///< tokens of text that did not fit their turns
  std::int64_t worst = -1;           ///< the turn that lost most, -1 for none ...
  std::int64_t worst_cut = 0;        ///< ... and how many it lost
};

/// The text channel of `frames` frames. BOS and the text are cut to the frames of their turn, so
/// that EOS never stands over text. A turn that begins before an earlier one is over ends it a
/// frame before: the earlier one loses text, not its EOS, unless no frame is left of it, which
/// takes all of it away. EOS beyond the last frame is an unfinished turn. `turns` in order of their
/// beginnings, else Error.
TextChannel text_channel(std::span<const FrameTurn> turns, std::int64_t frames,
                         const DialogueControls& controls);

/// The turns that a channel says, text without padding; one that has no EOS is over at the next BOS
/// or the end of the channel.
std::vector<FrameTurn> turns_of(std::span<const std::int32_t> channel,
                                const DialogueControls& controls);

/// Codes that are no sound, of every codebook: N, N + 1 and N + 2 beside N codes of sound.
struct CodeControls {
  std::int32_t bos = 0, eos = 0, delay = 0;
  static CodeControls behind(std::int64_t codes) {
    const auto n = static_cast<std::int32_t>(codes);
    return {n, n + 1, n + 2};
  }
};

/// Where the rows of one dialogue go, each of `rows` frames: text [rows], codes [rows, K].
struct DialogueRows {
  std::span<std::int32_t> text, text_targets, codes, code_targets;
};
inline constexpr std::int32_t kNoTarget = -1;

/// The steps of a dialogue of T frames. Codes become BOS and EOS where the text has them, and are
/// delayed by a frame, DELAY first: c'[0] = DELAY, c'[t] = c[t-1]. Step t = 0 ... T - 2 reads
/// text[t] and c'[t] and is to say text[t+1] and c'[t+1] = c[t]. Rows behind are padding: 0, and no
/// target. `codes` [>= T, K] of sound. Error where T - 1 > rows.
void fill_dialogue_rows(std::span<const std::int32_t> text, std::span<const std::uint16_t> codes,
                        const DialogueControls& controls, const CodeControls& code_controls,
                        const DialogueRows& to);

}  // namespace choir
