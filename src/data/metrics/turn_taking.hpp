#pragma once
// Evaluation of an agent in dialogues: counts of its turn-taking, integers that are summed over
// dialogues and ranks, with their metrics; and the reference transcript of its speech. The text of
// a turn runs ahead of its sound, so if the user interrupts, the turn contains words that nobody
// hears. Pure functions; times in frames of 80 ms.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/data/dialogues/dialogue_channels.hpp"
#include "src/data/dialogues/dialogue_manifest.hpp"

namespace choir {

/// A stretch of frames in which the user speaks: [begin, end).
struct UserSpan {
  std::int64_t begin = 0, end = 0;
};

struct TurnCounts {
  static constexpr std::int64_t kNear = 3;  ///< largest distance of a hit in frames
  /// bins of a histogram; the last one holds all larger values
  static constexpr std::size_t kLongest = 64;

  std::int64_t dialogues = 0;
  std::int64_t turns = 0;         ///< turns of the reference
  std::int64_t hits = 0;          ///< turns begun within kNear frames of the reference
  std::int64_t missed = 0;        ///< turns of the reference that were not answered
  std::int64_t false_starts = 0;  ///< turns begun while the user speaks, without hits
  std::int64_t more = 0;          ///< unexpected turns begun in silence
  std::int64_t exact = 0;         ///< answers with exactly the text of the reference
  std::int64_t barge_ins = 0;     ///< interruptions of a reference turn by the user
  std::int64_t talked_on = 0;     ///< interruptions after which the agent never stopped
  /// Frames from the end of the user's speech to the beginning of the answer (negative values count
  /// as 0), and from the beginning of an interruption to the EOS that follows it.
  std::array<std::int64_t, kLongest> latency{}, stop{};

  TurnCounts& operator+=(const TurnCounts& other);
  /// All integers, for a sum over ranks: of_integers(the sum of integers()) is the sum of the
  /// counts.
  std::vector<std::int64_t> integers() const;
  static TurnCounts of_integers(std::span<const std::int64_t> integers);

  /// {name, value} for logs: "turn_hits", "false_starts", "missed_turns", "text_exact" as shares of
  /// the turns, "latency_frames" and, with barge-ins, "stop_frames" as medians.
  std::vector<std::pair<std::string, double>> metrics() const;
  friend bool operator==(const TurnCounts&, const TurnCounts&) = default;
};

/// For each turn of the reference, the index of its answer in `said`: the first turn that begins
/// between kNear frames before it and kNear frames before the next one; -1 if there is none. Both
/// lists are in order and belong to a dialogue of `frames` frames.
std::vector<std::int64_t> answers_to(std::span<const FrameTurn> reference,
                                     std::span<const FrameTurn> said, std::int64_t frames);

/// Counts of one dialogue of `frames` frames; its turns are compared with their answers_to().
TurnCounts count_turns(std::span<const FrameTurn> reference, std::span<const FrameTurn> said,
                       std::span<const UserSpan> user, std::int64_t frames);

/// The median of a histogram (the lower one of two); -1 if it is empty.
std::int64_t median_of(std::span<const std::int64_t> histogram);

/// The stretches in which the user speaks.
std::vector<UserSpan> user_spans(std::span<const DialogueTurn> turns, const FrameClock& clock);

struct HeardReference {
  std::string words;  ///< words of all turns of the agent, separated by blanks
  /// Frames [begin, end) of the agent's speech that are excluded from recognition.
  std::vector<UserSpan> unheard;
};

/// The reference of a dialogue of `frames` frames in which the agent took the turns `said`. It is
/// the text of the reference turns. For a turn that the user interrupts, and whose words have
/// times, it is reduced to the words that the manifest lists as heard to their end, minus the words
/// for which the agent had no time: it stopped after the interruption and before these words would
/// have ended, if they had begun as late after the start of its turn as in the reference. The rest
/// of such a turn after its last word is excluded from recognition: it is nobody's fault whether an
/// interrupted word is understood, and the time of stopping is measured elsewhere
/// (TurnCounts::stop).
HeardReference heard_reference(std::span<const DialogueTurn> turns, const FrameClock& clock,
                               std::span<const FrameTurn> said, std::int64_t frames);

}  // namespace choir
