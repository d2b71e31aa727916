// Tests of templates as Jinja programs. test/run/specials.sh runs them, if Python has jinja2, and
// compares their texts with those of encode_conversation().
#include <gtest/gtest.h>

#include "src/data/chat/chat_program.hpp"
#include "src/data/chat/chat_template.hpp"
#include "src/data/vocabulary/vocabulary.hpp"

namespace choir {
namespace {

std::string program(ChatTemplate chat, const JinjaOptions& options = {}) {
  const auto tokenizer = chat_tokenizer(Vocabulary::bytes(), chat);
  return jinja_program(chat, *tokenizer, options);
}

TEST(JinjaProgram, ChatMl) {
  EXPECT_EQ(program(ChatTemplate::chatml),
            "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
            "message['content'] + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ "
            "'<|im_start|>assistant\\n' }}{% endif %}");
  EXPECT_EQ(program(ChatTemplate::chatml, {.system = "It's \\ short."}),
            "{% if not messages or messages[0]['role'] != 'system' %}{{ "
            "'<|im_start|>system\\nIt\\'s \\\\ short.<|im_end|>\\n' }}{% endif %}" +
                program(ChatTemplate::chatml));
}

TEST(JinjaProgram, Llama3) {
  EXPECT_EQ(program(ChatTemplate::llama3),
            "{{ '<|begin_of_text|>' }}{% for message in messages %}{{ '<|start_header_id|>' + "
            "message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + "
            "'<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{ "
            "'<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}");
}

TEST(JinjaProgram, Gemma) {
  EXPECT_EQ(
      program(ChatTemplate::gemma),
      "{% if messages and messages[0]['role'] == 'system' %}{% set system = "
      "messages[0]['content'] %}{% set turns = messages[1:] %}{% else %}{% set system = '' "
      "%}{% set turns = messages %}{% endif %}{{ '<bos>' }}{% if system and (not turns or "
      "turns[0]['role'] != 'user') %}{{ '<start_of_turn>user\\n' + ('' + system + '\\n\\n') | "
      "trim + '<end_of_turn>\\n<start_of_turn>model\\n' }}{% endif %}{% for turn in turns "
      "%}{% if turn['role'] == 'assistant' %}{{ '' + turn['content'] | trim + "
      "'<end_of_turn>\\n' }}{% elif loop.first and system and turn['role'] == 'user' %}{{ "
      "'<start_of_turn>user\\n' + ('' + system + '\\n\\n' + turn['content']) | trim + "
      "'<end_of_turn>\\n<start_of_turn>model\\n' }}{% else %}{{ '<start_of_turn>user\\n' + "
      "turn['content'] | trim + '<end_of_turn>\\n<start_of_turn>model\\n' }}{% endif %}{% "
      "endfor %}");
}

TEST(JinjaProgram, EveryTemplateIsRecognised) {
  for (const ChatTemplate chat :
       {ChatTemplate::chatml, ChatTemplate::llama3, ChatTemplate::llama2, ChatTemplate::mistral,
        ChatTemplate::gemma, ChatTemplate::phi3, ChatTemplate::phi4, ChatTemplate::phi4_mini,
        ChatTemplate::olmo2, ChatTemplate::granite})
    EXPECT_EQ(template_written_by(program(chat)), chat) << name_of(chat);
  EXPECT_EQ(template_written_by(program(ChatTemplate::plain)), std::nullopt);
}

/// The text without the marks that tell the texts of turns from what the program writes itself.
std::string without_marks(const std::string& text) {
  std::string left;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\xFF' || text[i] == '\xFE')
      i = text.find('\xFD', i);
    else
      left += text[i];
  }
  return left;
}

// The program of a template writes what the template writes, with and without a system turn.
TEST(JinjaProgram, WritesWhatTheTemplateWrites) {
  for (const ChatTemplate chat : {ChatTemplate::phi3, ChatTemplate::phi4, ChatTemplate::phi4_mini,
                                  ChatTemplate::olmo2, ChatTemplate::granite})
    for (const std::string system : {"", "Be \\ 'brief'."})
      for (const bool answered : {true, false}) {
        const auto tokenizer = chat_tokenizer(Vocabulary::bytes(), chat);
        Conversation talk{"here:1",
                          "",
                          {{.role = "user", .text = "Hi"},
                           {.role = "assistant", .text = "Hello!"},
                           {.role = "user", .text = "2+2?"},
                           {.role = "assistant", .text = "4"}}};
        if (!answered) talk.turns.pop_back();
        const ChatProgram written(program(chat, {.system = system}), {});
        EXPECT_EQ(without_marks(written.render(talk.turns, !answered)),
                  tokenizer->decode(
                      encode_conversation(talk, {.chat = chat, .system = system}, *tokenizer).ids))
            << name_of(chat);
      }
}

TEST(JinjaProgram, EndsOfTurns) {
  for (const auto& [chat, text] : {std::pair(ChatTemplate::chatml, "<|im_end|>"),
                                   {ChatTemplate::llama3, "<|eot_id|>"},
                                   {ChatTemplate::llama2, "</s>"},
                                   {ChatTemplate::mistral, "</s>"},
                                   {ChatTemplate::gemma, "<end_of_turn>"},
                                   {ChatTemplate::phi3, "<|end|>"},
                                   {ChatTemplate::phi4, "<|im_end|>"},
                                   {ChatTemplate::phi4_mini, "<|end|>"},
                                   {ChatTemplate::olmo2, "<|endoftext|>"},
                                   {ChatTemplate::granite, "<|end_of_text|>"},
                                   {ChatTemplate::plain, "</s>"}}) {
    const auto tokenizer = chat_tokenizer(Vocabulary::bytes(), chat);
    EXPECT_EQ(end_of_turn_text(chat, *tokenizer), text);
    EXPECT_EQ(tokenizer->control(text), end_of_turn(chat, *tokenizer));
  }
}

}  // namespace
}  // namespace choir
