// Tests of chat templates as Jinja programs that are run: each version of Mistral's format, default
// system turns, thoughts, and what is refused. The expected texts are those of jinja2 with the
// settings of transformers.
#include "src/data/chat/chat_program.hpp"

#include <gtest/gtest.h>

#include <map>

#include "choir/core/error.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

/// Bytes, and control tokens from 256 on. Records the places of texts.
class ByteChat final : public ChatTokenizer {
 public:
  explicit ByteChat(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {}

  std::vector<std::string> pieces;

  std::vector<std::int32_t> encode(std::string_view text, std::string_view) override {
    std::vector<std::int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::vector<std::int32_t> encode_at(std::string_view text, std::string_view source,
                                      ChatPlace place) override {
    pieces.push_back((place == ChatPlace::start          ? "^"
                      : place == ChatPlace::behind_token ? ">"
                                                         : "+") +
                     std::string(text));
    return encode(text, source);
  }
  std::optional<std::int32_t> control(std::string_view token) const override {
    const auto at = std::find(tokens_.begin(), tokens_.end(), token);
    if (at == tokens_.end()) return std::nullopt;
    return 256 + static_cast<std::int32_t>(at - tokens_.begin());
  }
  std::vector<std::string> controls() const override { return tokens_; }
  std::string decode(std::vector<std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids)
      text += id < 256 ? std::string(1, static_cast<char>(id))
                       : tokens_[static_cast<std::size_t>(id - 256)];
    return text;
  }
  int vocab_size() const override { return 256 + static_cast<int>(tokens_.size()); }
  std::uint64_t hash() const override { return 1; }

 private:
  std::vector<std::string> tokens_;
};

ByteChat mistral_tokens() {
  return ByteChat(
      {"<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CALLS]"});
}

ChatProgram program(const std::string& source) {
  return ChatProgram(source, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
}

Conversation two_questions(bool with_system = true) {
  Conversation all{"here:1",
                   "",
                   {{.role = "user", .text = "Hi"},
                    {.role = "assistant", .text = "Hello!"},
                    {.role = "user", .text = "2+2?"},
                    {.role = "assistant", .text = "4"}}};
  if (with_system) all.turns.insert(all.turns.begin(), {.role = "system", .text = "Be brief."});
  return all;
}

std::string shown(const ChatProgram& p, const Conversation& conversation, ByteChat& tokenizer,
                  const std::string& system = "") {
  return show_encoded(encode_by_program(p, conversation, system, tokenizer), tokenizer, "{", "}");
}

// Phi-3's template: where no answer follows, it writes the end of the text instead of a header.
TEST(ChatProgram, TheHeaderIsFoundWhereAnEndStandsInItsPlace) {
  const ChatProgram phi = program(
      "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}"
      "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}"
      "{% else %}{{ '<|endoftext|>' }}{% endif %}");
  ByteChat tokenizer({"<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"});
  EXPECT_EQ(shown(phi, two_questions(false), tokenizer),
            "<|user|>\nHi<|end|>\n<|assistant|>\n{Hello!<|end|>}\n<|user|>\n2+2?<|end|>\n"
            "<|assistant|>\n{4<|end|>}\n<|endoftext|>");
}

/// A program with the system turn in front of the first or the last turn of the user.
std::string folding(const std::string& where, const std::string& user, const std::string& behind,
                    const std::string& answer) {
  return "{%- if messages[0]['role'] == 'system' %}\n    {%- set held = messages[0]['content'] %}\n"
         "    {%- set rest = messages[1:] %}\n{%- else %}\n    {%- set rest = messages %}\n"
         "{%- endif %}\n\n{{- bos_token }}\n{%- for m in rest %}\n"
         "    {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}\n"
         "        {{- raise_exception('turns must alternate') }}\n    {%- endif %}\n"
         "    {%- if m['role'] == 'user' %}\n        {%- if loop." +
         where +
         " and held is defined %}\n"
         "            {{- '" +
         user + "' + held + '\\n\\n' + m['content'] + '" + behind +
         "' }}\n        {%- else %}\n            {{- '" + user + "' + m['content'] + '" + behind +
         "' }}\n        {%- endif %}\n    {%- else %}\n        {{- " + answer +
         " + eos_token }}\n    {%- endif %}\n{%- endfor %}\n";
}

TEST(ChatProgram, EveryVersionOfMistral) {
  struct Version {
    std::string source, wanted;
  };
  const std::vector<Version> versions{
      {"{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + "
       "m['content'] + ' [/INST]' }}{% elif m['role'] == 'assistant' %}{{ m['content'] + eos_token "
       "+ ' ' }}{% else %}{{ raise_exception('only users and assistants') }}{% endif %}"
       "{% endfor %}",
       "<s>[INST] Be brief.\\n\\nHi [/INST]{Hello!</s>} [INST] 2+2? [/INST]{4</s>} "},
      {folding("first", " [INST] ", " [/INST]", "' ' + m['content']"),
       "<s> [INST] Be brief.\\n\\nHi [/INST]{ Hello!</s>} [INST] 2+2? [/INST]{ 4</s>}"},
      {folding("last", "[INST] ", "[/INST]", "' ' + m['content']|trim"),
       "<s>[INST] Hi[/INST]{ Hello!</s>}[INST] Be brief.\\n\\n2+2?[/INST]{ 4</s>}"},
      {folding("last", "[INST]", "[/INST]", "m['content']"),
       "<s>[INST]Hi[/INST]{Hello!</s>}[INST]Be brief.\\n\\n2+2?[/INST]{4</s>}"},
      {"{{- bos_token }}{%- for m in messages %}{%- if m.role == 'system' %}{{- "
       "'[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}{%- elif m.role == 'user' %}{{- "
       "'[INST]' + m.content + '[/INST]' }}{%- else %}{{- m.content + eos_token }}{%- endif %}"
       "{%- endfor %}",
       "<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]Hi[/INST]{Hello!</s>}[INST]2+2?[/INST]{4"
       "</s>}"}};
  for (std::size_t i = 0; i < versions.size(); ++i) {
    // The first two versions have [INST] as text.
    ByteChat tokenizer = i < 2 ? ByteChat({"<s>", "</s>"}) : mistral_tokens();
    const ChatProgram p = program(versions[i].source);
    std::string found = shown(p, two_questions(), tokenizer);
    for (std::size_t at; (at = found.find('\n')) != std::string::npos;) found.replace(at, 1, "\\n");
    EXPECT_EQ(found, versions[i].wanted) << "version " << i;
    EXPECT_EQ(end_of_turn(p, tokenizer).text, "</s>");
  }
}

// The third and fourth version put the system turn in front of the last question.
TEST(ChatProgram, SystemInFrontOfTheLastQuestion) {
  ByteChat tokenizer = mistral_tokens();
  Conversation asked = two_questions();
  asked.turns.pop_back();
  EXPECT_EQ(shown(program(folding("last", "[INST]", "[/INST]", "m['content']")), asked, tokenizer),
            "<s>[INST]Hi[/INST]{Hello!</s>}[INST]Be brief.\n\n2+2?[/INST]");
}

TEST(ChatProgram, PlacesOfTexts) {
  ByteChat tokenizer = mistral_tokens();
  shown(program(folding("last", "[INST] ", "[/INST]", "' ' + m['content']")), two_questions(false),
        tokenizer);
  EXPECT_EQ(tokenizer.pieces, (std::vector<std::string>{"> Hi", "> Hello!", "> 2+2?", "> 4"}));
  ByteChat text({"<s>", "</s>"});
  shown(program(folding("first", " [INST] ", " [/INST]", "' ' + m['content']")),
        two_questions(false), text);
  EXPECT_EQ(text.pieces, (std::vector<std::string>{"> [INST] Hi [/INST]", "+ Hello!",
                                                   "> [INST] 2+2? [/INST]", "+ 4"}));
}

constexpr const char* kWithDefault =
    "{% for m in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
    "'<|im_start|>system\nYou are a default.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + "
    "m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if "
    "add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

TEST(ChatProgram, DefaultSystemTurn) {
  ByteChat tokenizer({"<|im_start|>", "<|im_end|>"});
  const ChatProgram p = program(kWithDefault);
  const Conversation asked{"here:1", "", {{.role = "user", .text = "Hi"}}};
  EXPECT_EQ(shown(p, asked, tokenizer),
            "<|im_start|>system\nYou are a default.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(shown(p, asked, tokenizer, "Mine."),
            "<|im_start|>system\nMine.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(
      shown(p, {"here:1", "", {asked.turns[0], {.role = "assistant", .text = " Yes "}}}, tokenizer),
      "<|im_start|>system\nYou are a default.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
      "<|im_start|>assistant\n{ Yes <|im_end|>}\n");
  EXPECT_EQ(end_of_turn(p, tokenizer).id, 257);
}

// A control token in the text of a turn is text, also if the program trims the text.
TEST(ChatProgram, ControlTokensInTextsAreText) {
  ByteChat tokenizer({"<|im_start|>", "<|im_end|>"});
  const Conversation conversation{
      "here:1",
      "",
      {{.role = "user", .text = " <|im_end|> "}, {.role = "assistant", .text = "no<|im_end|>"}}};
  for (const char* trim : {"", " | trim"}) {
    std::string source = kWithDefault;
    source.replace(source.find("m['content']"), 12, std::string("m['content']") + trim);
    const auto encoded = encode_by_program(program(source), conversation, "", tokenizer);
    EXPECT_EQ(std::count(encoded.ids.begin(), encoded.ids.end(), 257), 3) << trim;
  }
}

/// Like Qwen3: thoughts are removed from earlier answers, and written in the last one.
constexpr const char* kThinks =
    "{%- for m in messages %}{%- if m.role == 'assistant' %}{%- set said = m.content %}"
    "{%- set thought = '' %}{%- if '</think>' in said %}{%- set thought = "
    "said.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}"
    "{%- set said = said.split('</think>')[-1].lstrip('\\n') %}{%- endif %}"
    "{{- '<|im_start|>assistant\\n' }}{%- if loop.last %}{{- '<think>\\n' + thought + "
    "'\\n</think>\\n\\n' }}{%- endif %}{{- said + '<|im_end|>\\n' }}{%- else %}{{- "
    "'<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

TEST(ChatProgram, ThoughtsAreTargets) {
  ByteChat tokenizer({"<|im_start|>", "<|im_end|>"});
  const std::string thinks = "<think>\nhm\n</think>\n\n";
  const Conversation all{"here:1",
                         "",
                         {{.role = "user", .text = "a"},
                          {.role = "assistant", .text = thinks + "b"},
                          {.role = "user", .text = "c"},
                          {.role = "assistant", .text = thinks + "d"}}};
  EXPECT_EQ(shown(program(kThinks), all, tokenizer),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n{b<|im_end|>}\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n{<think>\nhm\n</think>\n\nd"
            "<|im_end|>}\n");
  Conversation plain = all;
  plain.turns.resize(2);
  plain.turns[1].text = "b";
  EXPECT_EQ(shown(program(kThinks), plain, tokenizer),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n{<think>\n\n</think>\n\nb"
            "<|im_end|>}\n");
}

/// The message of the error, or "".
std::string fault(const std::string& source, const Conversation& conversation) {
  ByteChat tokenizer = mistral_tokens();
  try {
    encode_by_program(program(source), conversation, "", tokenizer);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST(ChatProgram, NamesWhatItCannotDo) {
  Conversation twice = two_questions(false);
  twice.turns.insert(twice.turns.begin(), twice.turns.front());
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const std::string mistral = folding("first", "[INST]", "[/INST]", "m['content']");
  has(fault(mistral, twice), "here:1: the chat template refuses it: turns must alternate");
  has(fault("{% for m in messages %}{{ m.content | upper }}{% endfor %}", two_questions()),
      "ends answers with no special token");
  has(fault("{% for m in messages %}{{ m.content if m.role != 'assistant' else 'b' }}{% endfor %}",
            two_questions()),
      "changes the text of turn 3, an answer");
  has(fault(
          "{% for m in messages %}{% if m.role != 'system' %}{{ m.content + eos_token }}{% endif %}"
          "{% endfor %}",
          two_questions()),
      "leaves out turn 1, of the system");
  has(fault("{{ messages | secret }}", two_questions()), "the filter 'secret', which is unknown");
  has(fault("{{ nothing() }}", two_questions()), "calls 'nothing'");
  has(fault("{% for i in range(9999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            two_questions()),
      "does not end in time");
  EXPECT_THROW(program("{% if x %}"), DataError);
  EXPECT_THROW(program("{{ 'a }}"), DataError);
  EXPECT_THROW(program("{% include 'x' %}"), DataError);
}

TEST(ChatProgram, IsReadFromFilesOfTransformers) {
  const std::string config =
      R"({"bos_token": {"content": "<B>", "lstrip": false}, "chat_template": [{"name": "tool_use",
      "template": "x"}, {"name": "default", "template": "{{ bos_token }}"}]})";
  const auto p = ChatProgram::of_files({{"tokenizer_config.json", config}});
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(p->render({}, false), "<B>");
  const auto q =
      ChatProgram::of_files({{"tokenizer_config.json", config}, {"chat_template.jinja", "own"}});
  EXPECT_EQ(q->render({}, false), "own");
  EXPECT_EQ(ChatProgram::of_files({{"tokenizer_config.json", "{}"}}), nullptr);
}

TEST(ChatProgram, PassesThroughStoredForms) {
  ChatForm form{.chat_template = "own",
                .system = "S",
                .tokenizer = "{}",
                .program = std::make_shared<const ChatProgram>(program(kWithDefault))};
  const ChatForm again = ChatForm::from_json(form.to_json(), "memory");
  ASSERT_NE(again.program, nullptr);
  EXPECT_EQ(again.program->source(), kWithDefault);
  EXPECT_EQ(again.program->tokens(), form.program->tokens());
  EXPECT_EQ(again.to_json(), form.to_json());
}

// A default of the training data becomes a default of the exported program.
TEST(ChatProgram, StandingSystemTurn) {
  ByteChat tokenizer({"<|im_start|>", "<|im_end|>"});
  const ChatProgram p = program(with_standing_system(kWithDefault, "It's mine."));
  EXPECT_EQ(shown(p, {"here:1", "", {{.role = "user", .text = "Hi"}}}, tokenizer),
            "<|im_start|>system\nIt's mine.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n");
}

}  // namespace
}  // namespace choir
