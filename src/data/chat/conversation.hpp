#pragma once
// Conversations of people with assistants for chat fine-tuning and for models with audio input
// (turns of text and clips of audio, read from the common forms of JSON lines), and prompts: texts
// to continue, or conversations to answer. Local functions.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

/// Marks the position of a clip of audio in the text of a turn.
inline constexpr const char* kAudioTag = "<|audio|>";

struct AudioClip {
  std::string path;  ///< absolute, or relative to the working directory
  double offset = 0;
  double duration = 0;  ///< seconds
  std::string archive;  ///< the tar archive that contains `path`; "": none
  friend bool operator==(const AudioClip&, const AudioClip&) = default;
};

struct Turn {
  std::string role;  ///< system, user or assistant
  std::string text;  ///< with kAudioTag once for each clip
  std::vector<AudioClip> clips;
  /// False for an assistant's turn that is not a target ("weight": 0).
  bool counts = true;
  friend bool operator==(const Turn&, const Turn&) = default;
};

/// Neighbouring turns have different roles, and a system turn comes first.
struct Conversation {
  std::string place;  ///< "chat.jsonl:12"
  std::string id;     ///< "id" of the line; may be empty
  std::vector<Turn> turns;
};

struct ConversationList {
  std::vector<Conversation> conversations;  ///< in the order of the lines
  /// Excluded lines, counted by reason, with the position of the first one.
  struct Dropped {
    std::int64_t count = 0;
    std::string first;
  };
  std::map<std::string, Dropped> dropped;
  void drop(const std::string& reason, const std::string& place);
  /// "3 left out: empty answer 2 (first chat.jsonl:4), ..."; "" for none.
  std::string dropped_text() const;
  /// Keys that no part of a conversation is made from ("source"), with the number of objects that
  /// have them.
  std::map<std::string, std::int64_t> unused;
  /// "source (120), score (3)"; "" for none.
  std::string unused_text() const;
};

/// Reads JSON lines, plain or gzip, each of one of these forms:
///   {"messages": [{"role", "content"[, "weight"]}]}, content a text or a list of {"type": "text"}
///   {"conversations": [{"from", "value"[, "type": "text"|"audio", "duration", "offset"]}]} (NeMo,
///     ShareGPT with human and gpt, and "sound" with <sound> in a value)
///   {"prompt", "completion"}; {"instruction"[, "input"], "output"}
///   each with "system", and the last two with "history" (pairs of question and answer) as turns in
///     front; "tools", "reasoning_content" and other parts of a conversation are refused
///   cuts of Lhotse: audio, then the answer of the supervisions; the question is the tag "context"
///     of the cut or its supervision ({"custom": {"context"}}), or `context`
/// Relative paths of audio are searched beside the file, then in the working directory. With
/// `tars`, one for each path (both may be patterns, "chat__OP_0..2_CL_.jsonl"), they are members of
/// the tar of their file, as NeMo writes tarred conversations. Lines with "_skipme", with an empty
/// answer or with different numbers of clips and placeholders are left out and counted. Throws
/// DataError with file:line for any other line, and for a file without any conversation.
ConversationList read_conversations(const std::vector<std::string>& paths,
                                    const std::string& context = "",
                                    const std::vector<std::string>& tars = {});
/// The turns of one such line, with or without an answer; audio is relative to the working
/// directory. Throws a DataError that begins with `place`.
std::vector<Turn> read_turns(const std::string& line, const std::string& place);

struct Prompt {
  std::string place;        ///< "prompts.jsonl:3"
  std::string id;           ///< "id" of the line; may be empty
  std::string text;         ///< text to continue, if there are no turns
  std::vector<Turn> turns;  ///< the last one is not the assistant's
};

/// Reads one prompt per line; blank lines are skipped. If the first line begins with '{', every
/// line is a JSON object, {"prompt": TEXT} or {"messages": [{"role", "content"}]} (or
/// "conversations", see read_conversations()), with or without "id". Throws DataError with
/// source:line for other lines and for turns that end with an answer or contain audio, and
/// DataError for a text without prompts.
std::vector<Prompt> read_prompts(std::string_view text, const std::string& source);

}  // namespace choir
