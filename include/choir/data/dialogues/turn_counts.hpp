#pragma once
// How well an agent takes turns: integers that are summed over dialogues and ranks, and what is
// read off their sums. Pure functions; times in frames of 80 ms.
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "choir/data/dialogues/dialogue_channels.hpp"

namespace choir {

/// A stretch of frames in which the user speaks: [begin, end).
struct UserSpan {
  std::int64_t begin = 0, end = 0;
};

struct TurnCounts {
  static constexpr std::int64_t kNear = 3;     ///< frames a hit may be off
  static constexpr std::size_t kLongest = 64;  ///< the last bin of a histogram holds all beyond

  std::int64_t dialogues = 0;
  std::int64_t turns = 0;         ///< of the reference
  std::int64_t hits = 0;          ///< begun within kNear frames of the reference
  std::int64_t missed = 0;        ///< of which nothing was begun
  std::int64_t false_starts = 0;  ///< begun while the user speaks, and no hits
  std::int64_t more = 0;          ///< begun where there was none to begin, in silence
  std::int64_t exact = 0;         ///< of which all the text is that of the reference
  std::int64_t barge_ins = 0;     ///< of the user into what the agent says, and should not
  std::int64_t talked_on = 0;     ///< ... that it never heeded
  /// Frames from the end of what the user says to the beginning of the answer (0: or before), and
  /// from the beginning of a barge-in to the EOS that heeds it.
  std::array<std::int64_t, kLongest> latency{}, stop{};

  TurnCounts& operator+=(const TurnCounts& other);
  /// All integers, to be summed over ranks: of_integers(the sum of integers()) is their sum.
  std::vector<std::int64_t> integers() const;
  static TurnCounts of_integers(std::span<const std::int64_t> integers);

  /// {name, value} for logs: "turn_hits", "false_starts", "missed_turns", "text_exact" as shares of
  /// the turns, "latency_frames" and, with barge-ins, "stop_frames" as medians.
  std::vector<std::pair<std::string, double>> metrics() const;
  friend bool operator==(const TurnCounts&, const TurnCounts&) = default;
};

/// The number of the turn of `said` that stands for each turn of the reference: the first one that
/// begins between kNear frames before it and kNear frames before the next; -1: there is none. Both
/// in order, of a dialogue of so many frames.
std::vector<std::int64_t> answers_to(std::span<const FrameTurn> reference,
                                     std::span<const FrameTurn> said, std::int64_t frames);

/// One dialogue of so many frames, whose turns are compared with their answers_to().
TurnCounts count_turns(std::span<const FrameTurn> reference, std::span<const FrameTurn> said,
                       std::span<const UserSpan> user, std::int64_t frames);

/// The median of a histogram: the lower one of two; -1 of an empty one.
std::int64_t median_of(std::span<const std::int64_t> histogram);

}  // namespace choir
