// Tests of templates as Jinja programs. test/run/specials.sh runs them, if Python has jinja2, and
// compares their texts with those of encode_conversation().
#include <gtest/gtest.h>

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
  for (const ChatTemplate chat : {ChatTemplate::chatml, ChatTemplate::llama3, ChatTemplate::llama2,
                                  ChatTemplate::mistral, ChatTemplate::gemma})
    EXPECT_EQ(template_written_by(program(chat)), chat) << name_of(chat);
  EXPECT_EQ(template_written_by(program(ChatTemplate::plain)), std::nullopt);
}

TEST(JinjaProgram, EndsOfTurns) {
  for (const auto& [chat, text] : {std::pair(ChatTemplate::chatml, "<|im_end|>"),
                                   {ChatTemplate::llama3, "<|eot_id|>"},
                                   {ChatTemplate::llama2, "</s>"},
                                   {ChatTemplate::mistral, "</s>"},
                                   {ChatTemplate::gemma, "<end_of_turn>"},
                                   {ChatTemplate::plain, "</s>"}}) {
    const auto tokenizer = chat_tokenizer(Vocabulary::bytes(), chat);
    EXPECT_EQ(end_of_turn_text(chat, *tokenizer), text);
    EXPECT_EQ(tokenizer->control(text), end_of_turn(chat, *tokenizer));
  }
}

}  // namespace
}  // namespace choir
