#include "choir/data/dialogues/heard_reference.hpp"

#include <algorithm>

namespace choir {
namespace {

FrameTurn frames_of(const DialogueTurn& turn, const FrameClock& clock) {
  return {clock.frame_at(turn.start), clock.frame_at(turn.start + turn.duration), {}};
}

void append(std::string& words, const std::string& more) {
  if (!words.empty() && !more.empty()) words += ' ';
  words += more;
}

/// Processes the turns of the reference one after the other.
class Listener {
 public:
  Listener(const FrameClock& clock, std::vector<UserSpan> user)
      : clock_(clock), user_(std::move(user)) {}

  /// `answer`: the agent's turn that answers it; nullptr: none.
  void hear(const DialogueTurn& turn, const FrameTurn* answer) {
    const FrameTurn frames = frames_of(turn, clock_);
    const auto breaks_in = std::find_if(user_.begin(), user_.end(), [&](const UserSpan& span) {
      return frames.begin < span.begin && span.begin < frames.end;
    });
    if (breaks_in == user_.end() || turn.words.empty()) return append(heard.words, turn.text);
    const std::int64_t late = answer ? answer->begin - frames.begin : 0;
    const bool heeds = answer && answer->end > breaks_in->begin;
    std::int64_t until = answer ? answer->begin + 1 : 0;  // the frame of BOS has no sound
    for (const DialogueWord& word : turn.words) {
      const std::int64_t end = clock_.frame_at(word.start + word.duration) + late;
      if (heeds && end > answer->end) break;
      append(heard.words, word.text);
      until = std::max(until, end);
    }
    if (answer && until < answer->end) heard.unheard.push_back({until, answer->end});
  }

  HeardReference heard;

 private:
  FrameClock clock_;
  std::vector<UserSpan> user_;
};

}  // namespace

std::vector<UserSpan> user_spans(std::span<const DialogueTurn> turns, const FrameClock& clock) {
  std::vector<UserSpan> spans;
  for (const DialogueTurn& turn : turns) {
    if (turn.agent) continue;
    const FrameTurn frames = frames_of(turn, clock);
    spans.push_back({frames.begin, frames.end});
  }
  return spans;
}

HeardReference heard_reference(std::span<const DialogueTurn> turns, const FrameClock& clock,
                               std::span<const FrameTurn> said, std::int64_t frames) {
  std::vector<const DialogueTurn*> agent;
  std::vector<FrameTurn> reference;
  for (const DialogueTurn& turn : turns) {
    if (!turn.agent) continue;
    agent.push_back(&turn);
    reference.push_back(frames_of(turn, clock));
  }
  const std::vector<std::int64_t> answers = answers_to(reference, said, frames);
  Listener listener(clock, user_spans(turns, clock));
  for (std::size_t i = 0; i < agent.size(); ++i)
    listener.hear(*agent[i],
                  answers[i] < 0 ? nullptr : &said[static_cast<std::size_t>(answers[i])]);
  return std::move(listener.heard);
}

}  // namespace choir
