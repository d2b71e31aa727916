#pragma once
// The reference transcript of an agent's speech. The text of a turn runs ahead of its sound, so if
// the user interrupts, the turn contains words that nobody hears. Pure functions.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "choir/data/dialogues/dialogue_manifest.hpp"
#include "choir/data/dialogues/turn_counts.hpp"

namespace choir {

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
