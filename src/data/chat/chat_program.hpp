#pragma once
// The chat template of a model's own files: a Jinja program, which is run for every conversation,
// so that the model's own version of a format decides about blanks, the place and the default of
// the system turn, and the tokens around turns. Local.

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/data/chat/chat_template.hpp"
#include "src/data/chat/jinja/tree.hpp"

namespace choir {

class ChatProgram {
 public:
  /// `tokens`: texts by name ("bos_token": "<s>"), which the program reads as variables. Throws
  /// DataError for a program that cannot be parsed.
  ChatProgram(std::string source, std::map<std::string, std::string> tokens);
  /// From the files of transformers, texts by name: chat_template.jinja, or else `chat_template` of
  /// tokenizer_config.json (of several templates "default"), with the tokens of
  /// tokenizer_config.json and special_tokens_map.json. nullptr: there is none. Throws DataError.
  static std::shared_ptr<const ChatProgram> of_files(
      const std::map<std::string, std::string>& files);
  /// The same for the files in the folder of `path`.
  static std::shared_ptr<const ChatProgram> beside(const std::string& path);

  const std::string& source() const { return source_; }
  const std::map<std::string, std::string>& tokens() const { return tokens_; }
  /// The text of the turns; with `answer_follows` also the header of an answer. Throws DataError
  /// for an error in the program, and jinja::Refusal where it refuses the turns.
  std::string render(const std::vector<Turn>& turns, bool answer_follows) const;
  /// The header of an answer, where the program writes one; else "".
  const std::string& header() const { return header_; }

 private:
  std::string source_;
  std::map<std::string, std::string> tokens_;
  jinja::Program program_;
  std::string header_;
};

/// The program that a file stores as "program" with "program_tokens"; nullptr for none.
std::shared_ptr<const ChatProgram> program_of_json(const nlohmann::json& json);

/// Converts the text that the program writes to ids; see encode_conversation(). Special tokens are
/// found in what the program writes itself, never in the text of a turn. Targets begin behind the
/// header of an answer, so that they include what the model has to write besides the text of the
/// turn (an empty thought), and end with the special token behind the answer. A system turn that
/// the program refuses is put in front of the first user turn. Throws a DataError with the place of
/// the conversation for a program that refuses the turns, rewrites an answer beyond recognition, or
/// ends answers with no special token.
EncodedConversation encode_by_program(const ChatProgram& program, const Conversation& conversation,
                                      const std::string& system, ChatTokenizer& tokenizer);

struct TurnEnd {
  std::int32_t id = 0;
  std::string text;
};
/// The special token that ends an answer. Throws DataError.
TurnEnd end_of_turn(const ChatProgram& program, ChatTokenizer& tokenizer);

}  // namespace choir
