// Templates of chats as Jinja programs.

#include <fmt/core.h>

#include "choir/core/error.hpp"
#include "src/core/text.hpp"
#include "src/data/chat/chat_program.hpp"
#include "src/data/chat/chat_template.hpp"

namespace choir {
namespace {

/// A string literal of Jinja.
std::string jinja_text(std::string_view text) {
  std::string literal = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') literal += '\\';
    if (c == '\n')
      literal += "\\n";
    else if (c == '\r')
      literal += "\\r";
    else
      literal += c;
  }
  return literal + "'";
}

std::string print(const std::string& expression) {
  return "{{ " + expression + " }}";
}

/// Sets `system` to the text of the first turn, if that is a system turn, or else to the standing
/// one, and `turns` to the turns behind it.
std::string split_system(const std::string& standing) {
  return "{% if messages and messages[0]['role'] == 'system' %}"
         "{% set system = messages[0]['content'] %}{% set turns = messages[1:] %}"
         "{% else %}{% set system = " +
         jinja_text(standing) + " %}{% set turns = messages %}{% endif %}";
}

/// Writes system turns like all others.
std::string with_system_turns(const std::string& begin, const std::string& head,
                              const std::string& behind_role, const std::string& content,
                              const std::string& end, const std::string& standing) {
  std::string program = begin.empty() ? "" : print(jinja_text(begin));
  if (!standing.empty())
    program += "{% if not messages or messages[0]['role'] != 'system' %}" +
               print(jinja_text(head + "system" + behind_role + standing + end)) + "{% endif %}";
  return program + "{% for message in messages %}" +
         print(jinja_text(head) + " + message['role'] + " + jinja_text(behind_role) + " + " +
               content + " + " + jinja_text(end)) +
         "{% endfor %}{% if add_generation_prompt %}" +
         print(jinja_text(head + "assistant" + behind_role)) + "{% endif %}";
}

/// Writes the turns of OLMo 2. Only answers have an end, and no line break follows the last one.
std::string olmo2_program(const std::string& end, const std::string& standing) {
  std::string program = print(jinja_text(end));
  if (!standing.empty())
    program += "{% if not messages or messages[0]['role'] != 'system' %}" +
               print(jinja_text("<|system|>\n" + standing + "\n")) + "{% endif %}";
  return program +
         "{% for message in messages %}{% if message['role'] == 'assistant' %}"
         "{{ '<|assistant|>\\n' + message['content'] + " +
         jinja_text(end) +
         " }}{% if not loop.last %}{{ '\\n' }}{% endif %}{% else %}"
         "{{ '<|' + message['role'] + '|>\\n' + message['content'] + '\\n' }}{% endif %}{% endfor "
         "%}"
         "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}";
}

struct Marks {
  std::string begin;                         ///< of the conversation
  std::string before, behind;                ///< a turn that is no answer
  std::string before_answer, behind_answer;  ///< before its end
  std::string before_system, behind_system;
  bool trims = false;  ///< texts of turns
};

/// Writes the system turn into the first turn of the user.
std::string with_folded_system(const Marks& marks, const std::string& end,
                               const std::string& standing) {
  const std::string system =
      jinja_text(marks.before_system) + " + system + " + jinja_text(marks.behind_system);
  const auto user = [&](const std::string& content) {
    return print(jinja_text(marks.before) + " + " + content + " + " + jinja_text(marks.behind));
  };
  const std::string filter = marks.trims ? " | trim" : "", said = "turn['content']" + filter;
  std::string program = split_system(standing);
  if (!marks.begin.empty()) program += print(jinja_text(marks.begin));
  // A conversation that does not begin with the user gets a turn with the system's text alone.
  program += "{% if system and (not turns or turns[0]['role'] != 'user') %}" +
             user(marks.trims ? "(" + system + ")" + filter : system) + "{% endif %}";
  program += "{% for turn in turns %}{% if turn['role'] == 'assistant' %}" +
             print(jinja_text(marks.before_answer) + " + " + said + " + " +
                   jinja_text(marks.behind_answer + end)) +
             "{% elif loop.first and system and turn['role'] == 'user' %}" +
             user(marks.trims ? "(" + system + " + turn['content'])" + filter
                              : system + " + turn['content']") +
             "{% else %}" + user(said) + "{% endif %}{% endfor %}";
  return program;
}

}  // namespace

std::string end_of_turn_text(ChatTemplate chat, const ChatTokenizer& tokenizer) {
  const std::int32_t id = end_of_turn(chat, tokenizer);
  for (const char* token : {"<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>",
                            "<|end_of_text|>", "<eos>", "</s>"})
    if (tokenizer.control(token) == id) return token;
  CHOIR_CHECK(false, "the token {}, which ends a turn, has no known text", id);
  return "";
}

std::string with_standing_system(const std::string& program, const std::string& system) {
  if (system.empty()) return program;
  return "{%- if not messages or messages[0]['role'] != 'system' -%}"
         "{%- set messages = [{'role': 'system', 'content': " +
         jinja_text(system) + "}] + messages -%}{%- endif -%}" + program;
}

std::string end_of_turn_text(const OpenedTokenizer& opened) {
  return opened.program != nullptr ? end_of_turn(*opened.program, *opened.tokenizer).text
                                   : end_of_turn_text(opened.chat, *opened.tokenizer);
}

std::string jinja_program(ChatTemplate chat, const ChatTokenizer& tokenizer,
                          const JinjaOptions& options) {
  const std::string end = end_of_turn_text(chat, tokenizer), blank = " ";
  const std::string answer = options.blank_before_answer ? blank : "";
  switch (chat) {
    case ChatTemplate::chatml:
      return with_system_turns("", "<|im_start|>", "\n", "message['content']", end + "\n",
                               options.system);
    case ChatTemplate::phi3:
      return with_system_turns("", "<|", "|>\n", "message['content']", end + "\n", options.system);
    case ChatTemplate::phi4_mini:
      return with_system_turns("", "<|", "|>", "message['content']", end, options.system);
    case ChatTemplate::phi4:
      return with_system_turns("", "<|im_start|>", "<|im_sep|>", "message['content']", end,
                               options.system);
    case ChatTemplate::granite:
      return with_system_turns("", "<|start_of_role|>", "<|end_of_role|>", "message['content']",
                               end + "\n", options.system);
    case ChatTemplate::olmo2:
      return olmo2_program(end, options.system);
    case ChatTemplate::llama3:
      return with_system_turns("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>\n\n",
                               "message['content'] | trim", end, std::string(trim(options.system)));
    case ChatTemplate::llama2:
      return with_folded_system({.begin = "",
                                 .before = "<s>[INST] ",
                                 .behind = " [/INST]",
                                 .before_answer = answer,
                                 .behind_answer = blank,
                                 .before_system = "<<SYS>>\n",
                                 .behind_system = "\n<</SYS>>\n\n"},
                                end, options.system);
    case ChatTemplate::gemma:
      return with_folded_system({.begin = "<bos>",
                                 .before = "<start_of_turn>user\n",
                                 .behind = end + "\n<start_of_turn>model\n",
                                 .before_answer = "",
                                 .behind_answer = "",
                                 .before_system = "",
                                 .behind_system = "\n\n",
                                 .trims = true},
                                end + "\n", options.system);
    case ChatTemplate::mistral: {
      const bool tokens = tokenizer.control("[INST]").has_value();
      return with_folded_system({.begin = "<s>",
                                 .before = tokens ? "[INST]" + answer : "[INST] ",
                                 .behind = tokens ? "[/INST]" : " [/INST]",
                                 .before_answer = answer,
                                 .behind_answer = "",
                                 .before_system = "",
                                 .behind_system = "\n\n"},
                                end, options.system);
    }
    case ChatTemplate::plain:
    case ChatTemplate::own:
      break;
  }
  return with_folded_system({.begin = "",
                             .before = "",
                             .behind = "",
                             .before_answer = "",
                             .behind_answer = "",
                             .before_system = "",
                             .behind_system = "\n\n"},
                            end, options.system);
}

}  // namespace choir
