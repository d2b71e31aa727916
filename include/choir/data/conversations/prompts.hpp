#pragma once
// What a language model is asked: texts to go on with, or conversations to answer. Pure.
#include <string>
#include <string_view>
#include <vector>

#include "choir/data/conversations/conversation.hpp"

namespace choir {

struct Prompt {
  std::string place;        ///< "prompts.jsonl:3"
  std::string id;           ///< as the line says; may be empty
  std::string text;         ///< without turns: what is to go on
  std::vector<Turn> turns;  ///< the last of them is not the assistant's
};

/// One prompt a line; blank lines are passed over. Where the first begins with '{' every line is a
/// JSON object, {"prompt": TEXT} or {"messages": [{"role", "content"}]} (or "conversations", see
/// read_conversations()), with "id" or without. DataError with source:line for another line, turns
/// that end with an answer or have audio, and a text without any prompt.
std::vector<Prompt> read_prompts(std::string_view text, const std::string& source);

}  // namespace choir
