#pragma once
// What a listener should be able to write down of an agent. The text of a turn runs ahead of its
// sound, so where the user breaks in there are words in it that nobody hears. Pure functions.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "choir/data/dialogues/dialogue_manifest.hpp"
#include "choir/data/dialogues/turn_counts.hpp"

namespace choir {

/// When the user speaks.
std::vector<UserSpan> user_spans(std::span<const DialogueTurn> turns, const FrameClock& clock);

struct HeardReference {
  std::string words;  ///< of all turns of the agent, with a blank between
  /// Frames [begin, end) of what the agent said to which one does not listen.
  std::vector<UserSpan> unheard;
};

/// The reference for what was heard of a dialogue of so many frames, in which the agent took the
/// turns `said`. It is the text of the turns; but of one that the user breaks into, and whose words
/// have times, the words that the manifest lets be heard to their end, less those that the agent
/// had no time for: it stopped after the user had broken in, and before they would have ended, had
/// they begun as much behind the beginning of its turn as in the reference. Behind the last of
/// these words one does not listen to the turn: whether a word that is broken off is understood is
/// nobody's fault, and when the agent stops is measured elsewhere (TurnCounts::stop).
HeardReference heard_reference(std::span<const DialogueTurn> turns, const FrameClock& clock,
                               std::span<const FrameTurn> said, std::int64_t frames);

}  // namespace choir
