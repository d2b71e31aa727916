#pragma once
// A dialogue as written by `choir talk --json`, and its page: both voices on one time line with
// their known text, and players. Local; no MPI, no model.
#include <cstdint>
#include <string>
#include <vector>

namespace choir::report {

/// The state of a dialogue in one frame of the clock.
struct DialogueFrame {
  std::int64_t frame = 0;
  std::string text;       ///< text of the agent that begins in this frame: one piece or none
  bool speaking = false;  ///< true if the agent has the turn
  std::string heard;      ///< words of the user that were recognised with this frame
  double user_db = 0;     ///< loudness of the user, 0 for full scale
  double ms = 0;          ///< computing time of the frame
};

struct RecordedDialogue {
  std::string path;         ///< path of the lines
  std::string user, agent;  ///< sound files
  int sample_rate = 0;
  std::int64_t frame_samples = 0;  ///< samples of a frame at that rate
  std::vector<DialogueFrame> frames;

  double seconds_per_frame() const {
    return static_cast<double>(frame_samples) / static_cast<double>(sample_rate);
  }
};

/// The first line of the file, and the line of a frame; without line ends.
std::string dialogue_head_line(const RecordedDialogue& dialogue);
std::string dialogue_frame_line(const RecordedDialogue& dialogue, const DialogueFrame& frame);
/// Reads a dialogue. Paths of sound files may be relative to the file. Throws DataError for other
/// content.
RecordedDialogue read_dialogue(const std::string& path);

/// A turn: the agent or the user speaks in frames [first, end).
struct VoiceTurn {
  std::int64_t first = 0, end = 0;
  std::string text;
};
std::vector<VoiceTurn> agent_turns(const RecordedDialogue& dialogue);
/// The turns of the user, only from the words of a recogniser, which come a moment after they were
/// spoken. A second without words ends a turn.
std::vector<VoiceTurn> user_turns(const RecordedDialogue& dialogue);

/// Returns the section of a dialogue with the sound of both files; throws AudioError if one is
/// missing. `index` is the position among the dialogues of the page.
std::string dialogue_section(const RecordedDialogue& dialogue, std::size_t index);

}  // namespace choir::report
