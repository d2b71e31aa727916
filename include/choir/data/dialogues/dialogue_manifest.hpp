#pragma once
// Manifests of dialogues: what was recorded of a user and of an agent, and who says what when.
// Local functions.
#include <string>
#include <vector>

#include "choir/data/audio/audio_manifest.hpp"

namespace choir {

/// The names that the speakers of a manifest have: those of the user and those of the agent.
struct DialogueRoles {
  std::vector<std::string> user{"user", "User"};
  std::vector<std::string> agent{"agent", "Agent", "assistant", "Assistant"};
  /// "user=NAME,agent=NAME", several names of one as NAME|NAME. Throws DeckError: another form, one
  /// name for both, a role without a name.
  static DialogueRoles parse(const std::string& text);
  /// Throws DataError for a speaker who is neither: never is a turn left out because of its name.
  bool is_agent(const std::string& speaker, const std::string& place) const;
};

struct DialogueWord {
  std::string text;
  double start = 0, duration = 0;  ///< seconds from the beginning of the dialogue
  friend bool operator==(const DialogueWord&, const DialogueWord&) = default;
};

struct DialogueTurn {
  bool agent = false;
  double start = 0, duration = 0;  ///< seconds from the beginning of the dialogue
  std::string text;                ///< without time stamps "<|12|>", blanks squeezed
  /// What is heard of the text of an agent's turn, in order, where the manifest aligns its words: a
  /// turn that is broken off has more text than these.
  std::vector<DialogueWord> words{};
  friend bool operator==(const DialogueTurn&, const DialogueTurn&) = default;
};

/// One dialogue, not yet decoded.
struct DialogueEntry {
  std::string place, id;
  double duration = 0;              ///< seconds, as the manifest says
  std::string user, agent;          ///< of each side a cut of Lhotse, a line of JSON
  std::vector<DialogueTurn> turns;  ///< by their beginnings
};

struct DialogueManifest {
  std::vector<DialogueEntry> entries;  ///< in the order of the manifests
  std::vector<OmittedEntry> left_out;  ///< bad lines
};

/// Whether a folder is one of Lhotse's Shar: read_dialogues() takes it as a path.
bool is_shar(const std::string& folder);

/// Reads JSON lines, plain or gzip, or those of a folder of Lhotse's Shar, whose recordings and
/// targets lie in tars beside its cuts, each of one of these forms:
///   a MonoCut of Lhotse with "recording" of the user and "target_audio" of the agent (in "custom",
///     as Lhotse writes it, or beside it), from "start" on in both
///   a MultiCut of Lhotse with two channels in one recording; whose is whose say the channels of
///     the supervisions, else the first is the user's
///   {"audio_filepath", "duration"[, "offset"][, "target_audio_filepath"], "supervisions"}; without
///     the other file it is of two channels, the first of them the user's
/// with "supervisions": [{"speaker", "start", "duration", "text"[, "alignment"]}], an alignment as
/// Lhotse writes it, {"word": [[WORD, start, duration], ...]}. Paths are absolute or relative
/// to the manifest. Bad lines go to left_out. Throws DataError: a manifest that is missing or
/// empty, a speaker without a role.
DialogueManifest read_dialogues(const std::vector<std::string>& paths, const DialogueRoles& roles);

/// The turns of a line that packed dialogues have in the manifest of the user's audio ("turns").
/// Throws DataError that begins with `place`.
std::vector<DialogueTurn> turns_of_line(const std::string& line, const std::string& place);

}  // namespace choir
