#pragma once
// A dialogue as `choir talk --json` writes it, and its page: both voices on one time line with what
// they say, as far as that is known, and players. Local; no MPI, no model.
#include <cstdint>
#include <string>
#include <vector>

namespace choir::report {

/// What the agent does in one frame of the clock.
struct DialogueFrame {
  std::int64_t frame = 0;
  std::string text;       ///< said to begin in it: one piece of text, or none
  bool speaking = false;  ///< a turn of the agent holds it
  std::string heard;      ///< of the user's words, what became known with it
  double user_db = 0;     ///< loudness of the user, 0 for full scale
  double ms = 0;          ///< that the frame took to compute
};

struct RecordedDialogue {
  std::string path;         ///< of the lines
  std::string user, agent;  ///< sound files
  int sample_rate = 0;
  std::int64_t frame_samples = 0;  ///< of a frame at that rate
  std::vector<DialogueFrame> frames;

  double seconds_per_frame() const {
    return static_cast<double>(frame_samples) / static_cast<double>(sample_rate);
  }
};

/// The first line, and one for each frame; without an end.
std::string dialogue_head_line(const RecordedDialogue& dialogue);
std::string dialogue_frame_line(const RecordedDialogue& dialogue, const DialogueFrame& frame);
/// Sound files are found from where the lines are. DataError for anything else than such lines.
RecordedDialogue read_dialogue(const std::string& path);

/// The agent or the user speaks in frames [first, end).
struct VoiceTurn {
  std::int64_t first = 0, end = 0;
  std::string text;
};
std::vector<VoiceTurn> agent_turns(const RecordedDialogue& dialogue);
/// By a recogniser's words alone: they are known a moment after they were said. A second without
/// any ends a turn.
std::vector<VoiceTurn> user_turns(const RecordedDialogue& dialogue);

/// Reads both sound files: AudioError where one is missing. The page holds their sound. `index`:
/// among the dialogues of the page.
std::string dialogue_section(const RecordedDialogue& dialogue, std::size_t index);

}  // namespace choir::report
