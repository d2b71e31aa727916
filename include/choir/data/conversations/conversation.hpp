#pragma once
// Conversations of people with assistants, as chat fine-tuning and models that hear read them:
// turns of text and clips of audio, out of the forms of JSON lines that are in use. Local
// functions.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace choir {

/// Stands in the text of a turn where a clip of audio does.
inline constexpr const char* kAudioTag = "<|audio|>";

struct AudioClip {
  std::string path;  ///< absolute, or relative to the working directory
  double offset = 0;
  double duration = 0;  ///< seconds
  std::string archive;  ///< the tar that `path` is a member of; "": none
  friend bool operator==(const AudioClip&, const AudioClip&) = default;
};

struct Turn {
  std::string role;  ///< system, user or assistant
  std::string text;  ///< with kAudioTag once for each clip
  std::vector<AudioClip> clips;
  /// False for an assistant's turn that is no target ("weight": 0).
  bool counts = true;
  friend bool operator==(const Turn&, const Turn&) = default;
};

/// Two turns of one role never follow each other, and a system's turn is the first.
struct Conversation {
  std::string place;  ///< "chat.jsonl:12"
  std::string id;     ///< as the line says; may be empty
  std::vector<Turn> turns;
};

struct ConversationList {
  std::vector<Conversation> conversations;  ///< in the order of the lines
  /// Lines that are left out, counted by reason, with the place of the first of each.
  struct Dropped {
    std::int64_t count = 0;
    std::string first;
  };
  std::map<std::string, Dropped> dropped;
  void drop(const std::string& reason, const std::string& place);
  /// "3 left out: empty answer 2 (first chat.jsonl:4), ..."; "" for none.
  std::string dropped_text() const;
};

/// Reads JSON lines, plain or gzip, each of one of these forms:
///   {"messages": [{"role", "content"[, "weight"]}]}, content a text or a list of {"type": "text"}
///   {"conversations": [{"from", "value"[, "type": "text"|"audio", "duration", "offset"]}]} (NeMo,
///     ShareGPT with human and gpt, and "sound" with <sound> in a value)
///   {"prompt", "completion"}; {"instruction"[, "input"], "output"}
///   cuts of Lhotse: audio, then the answer of the supervisions; what is asked is the tag "context"
///     of the cut or its supervision ({"custom": {"context"}}), or `context`
/// Relative paths of audio are tried beside the file, then in the working directory. With `tars`,
/// one for each path (both may be patterns, "chat__OP_0..2_CL_.jsonl"), they are members of the tar
/// of their file, as NeMo writes tarred conversations. Left out and
/// counted: lines with "_skipme", with an empty answer, with other clips than placeholders. Throws
/// DataError with file:line for what is none of these, and for a file without any conversation.
ConversationList read_conversations(const std::vector<std::string>& paths,
                                    const std::string& context = "",
                                    const std::vector<std::string>& tars = {});
/// The turns of one such line, answered or not; audio relative to the working directory. DataError
/// that begins with `place`.
std::vector<Turn> read_turns(const std::string& line, const std::string& place);

}  // namespace choir
