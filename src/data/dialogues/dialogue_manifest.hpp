#pragma once
// Manifests of dialogues: the recordings of a user and of an agent, and their turns with times.
// Local functions.
#include <string>
#include <vector>

#include "src/data/audio/audio_manifest.hpp"

namespace choir {

/// The names of the user and of the agent among the speakers of a manifest.
struct DialogueRoles {
  std::vector<std::string> user{"user", "User"};
  std::vector<std::string> agent{"agent", "Agent", "assistant", "Assistant"};
  /// "user=NAME,agent=NAME"; several names of one side as NAME|NAME. Throws DeckError for another
  /// form, for a name on both sides, and for a side without a name.
  static DialogueRoles parse(const std::string& text);
  /// Throws DataError for a speaker who is neither, so that no turn is ever dropped because of its
  /// name.
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
  std::string text;                ///< without time stamps "<|12|>" and repeated blanks
  /// The words of an agent's turn that are heard, in order, if the manifest aligns its words. An
  /// interrupted turn has more text than these.
  std::vector<DialogueWord> words{};
  friend bool operator==(const DialogueTurn&, const DialogueTurn&) = default;
};

/// One dialogue, not yet decoded.
struct DialogueEntry {
  std::string place, id;
  double duration = 0;              ///< seconds, from the manifest
  std::string user, agent;          ///< a Lhotse cut of each side, as a line of JSON
  std::vector<DialogueTurn> turns;  ///< ordered by their beginnings
};

struct DialogueManifest {
  std::vector<DialogueEntry> entries;  ///< in the order of the manifests
  std::vector<OmittedEntry> left_out;  ///< bad lines
};

/// True if a folder is a Shar of Lhotse, which read_dialogues() accepts as a path.
bool is_shar(const std::string& folder);

/// Reads JSON lines, plain or gzip, or those of a folder of Lhotse's Shar, whose recordings and
/// targets are in tars beside its cuts. A line has one of these forms:
///   a MonoCut of Lhotse with "recording" of the user and "target_audio" of the agent (in "custom",
///     as Lhotse writes it, or beside it), from "start" on in both
///   a MultiCut of Lhotse with two channels in one recording; the channels of the supervisions
///     assign them, else the first one is the user's
///   {"audio_filepath", "duration"[, "offset"][, "target_audio_filepath"], "supervisions"}; if the
///     other file is missing, the first has two channels, and channel 0 is the user's
/// with "supervisions": [{"speaker", "start", "duration", "text"[, "alignment"]}], an alignment as
/// Lhotse writes it, {"word": [[WORD, start, duration], ...]}. Paths are absolute or relative
/// to the manifest. Bad lines go to left_out. Throws DataError for a manifest that is missing or
/// empty, and for a speaker without a role.
DialogueManifest read_dialogues(const std::vector<std::string>& paths, const DialogueRoles& roles);

/// Reads the turns ("turns") of a line in the manifest of packed user audio. Throws a DataError
/// that begins with `place`.
std::vector<DialogueTurn> turns_of_line(const std::string& line, const std::string& place);

}  // namespace choir
