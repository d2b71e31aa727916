#pragma once
// Prompts of a language model: texts to continue, or conversations to answer. Pure functions.
#include <string>
#include <string_view>
#include <vector>

#include "choir/data/conversations/conversation.hpp"

namespace choir {

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
