#include "src/data/chat/chat_template.hpp"

#include <gtest/gtest.h>

#include <map>

#include "choir/core/error.hpp"
#include "src/data/chat/conversation_file.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

using Ids = std::vector<std::int32_t>;
using Marks = std::vector<std::uint8_t>;

/// Tokens that the real tokenizers give for the pieces of the templates: any other piece is an
/// error.
class KnownPieces final : public ChatTokenizer {
 public:
  std::map<std::string, Ids, std::less<>> pieces;
  std::map<std::string, std::int32_t, std::less<>> controls;

  Ids encode(std::string_view text, std::string_view) override {
    const auto at = pieces.find(text);
    if (at == pieces.end()) throw DataError("unexpected piece '" + std::string(text) + "'");
    return at->second;
  }
  std::optional<std::int32_t> control(std::string_view token) const override {
    const auto at = controls.find(token);
    return at == controls.end() ? std::nullopt : std::optional(at->second);
  }
  std::string decode(Ids) const override { return ""; }
  int vocab_size() const override { return 200'000; }
  std::uint64_t hash() const override { return 1; }
};

Conversation talk() {
  return {"here:1",
          "",
          {{.role = "system", .text = "Be brief."},
           {.role = "user", .text = "Hi"},
           {.role = "assistant", .text = "Hello!"},
           {.role = "user", .text = "2+2?"},
           {.role = "assistant", .text = "4"}}};
}

TEST(ChatTemplate, ChatMlGivesTheIdsOfQwen2) {
  KnownPieces qwen;
  qwen.controls = {{"<|im_start|>", 151644}, {"<|im_end|>", 151645}};
  qwen.pieces = {{"system\nBe brief.", {8948, 198, 3430, 9814, 13}},
                 {"user\nHi", {872, 198, 13048}},
                 {"user\n2+2?", {872, 198, 17, 10, 17, 30}},
                 {"assistant\n", {77091, 198}},
                 {"Hello!", {9707, 0}},
                 {"4", {19}},
                 {"\n", {198}}};
  const auto encoded = encode_conversation(talk(), {.chat = ChatTemplate::chatml}, qwen);
  EXPECT_EQ(encoded.ids, (Ids{151644, 8948,   198,   3430,   9814,  13,     151645, 198,    151644,
                              872,    198,    13048, 151645, 198,   151644, 77091,  198,    9707,
                              0,      151645, 198,   151644, 872,   198,    17,     10,     17,
                              30,     151645, 198,   151644, 77091, 198,    19,     151645, 198}));
  EXPECT_EQ(encoded.counted, (Marks{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
                                    1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0}));
}

TEST(ChatTemplate, Llama3GivesTheKnownIds) {
  KnownPieces llama;
  llama.controls = {{"<|begin_of_text|>", 128000},
                    {"<|start_header_id|>", 128006},
                    {"<|end_header_id|>", 128007},
                    {"<|eot_id|>", 128009}};
  llama.pieces = {{"system", {9125}},
                  {"user", {882}},
                  {"assistant", {78191}},
                  {"\n\nBe brief.", {271, 3513, 10015, 13}},
                  {"\n\nHi", {271, 13347}},
                  {"\n\n2+2?", {271, 17, 10, 17, 30}},
                  {"\n\n", {271}},
                  {"Hello!", {9906, 0}},
                  {"4", {19}}};
  Conversation conversation = talk();
  conversation.turns[1].text = " Hi\n";  // texts are trimmed
  const auto encoded = encode_conversation(conversation, {.chat = ChatTemplate::llama3}, llama);
  EXPECT_EQ(encoded.ids,
            (Ids{128000, 128006, 9125,   128007, 271,    3513,   10015, 13,     128009, 128006,
                 882,    128007, 271,    13347,  128009, 128006, 78191, 128007, 271,    9906,
                 0,      128009, 128006, 882,    128007, 271,    17,    10,     17,     30,
                 128009, 128006, 78191,  128007, 271,    19,     128009}));
  EXPECT_EQ(encoded.counted, (Marks{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                    1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1}));
}

TEST(ChatTemplate, MistralHasControlTokensOrText) {
  Conversation conversation = talk();
  conversation.turns.erase(conversation.turns.begin());
  conversation.turns.pop_back();  // the user waits for an answer
  KnownPieces v3;
  v3.controls = {{"<s>", 1}, {"</s>", 2}, {"[INST]", 3}, {"[/INST]", 4}};
  v3.pieces = {
      {"Hi", {16127}}, {"Hello!", {23325, 29576}}, {"2+2?", {29473, 29518, 29574, 29518, 29572}}};
  auto encoded = encode_conversation(conversation, {.chat = ChatTemplate::mistral}, v3);
  EXPECT_EQ(encoded.ids,
            (Ids{1, 3, 16127, 4, 23325, 29576, 2, 3, 29473, 29518, 29574, 29518, 29572, 4}));
  EXPECT_EQ(encoded.counted, (Marks{0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0}));

  KnownPieces v1;
  v1.controls = {{"<s>", 1}, {"</s>", 2}};
  v1.pieces = {{"[INST] Hi [/INST]", {733, 16289, 28793, 15359, 733, 28748, 16289, 28793}},
               {"Hello!", {22557, 28808}},
               {"[INST] 2+2? [/INST]",
                {733, 16289, 28793, 28705, 28750, 28806, 28750, 28804, 733, 28748, 16289, 28793}}};
  encoded = encode_conversation(conversation, {.chat = ChatTemplate::mistral}, v1);
  EXPECT_EQ(encoded.ids, (Ids{1,     733,   16289, 28793, 15359, 733,   28748, 16289,
                              28793, 22557, 28808, 2,     733,   16289, 28793, 28705,
                              28750, 28806, 28750, 28804, 733,   28748, 16289, 28793}));
}

// The assistant is called model, the text of the system is in front of the user's, texts are
// trimmed, and of the end of an answer only the token is a target.
TEST(ChatTemplate, Gemma) {
  auto tokenizer = chat_tokenizer(Vocabulary::bytes(), ChatTemplate::gemma);
  Conversation conversation = talk();
  conversation.turns[1].text = " Hi\n";
  const auto encoded = encode_conversation(conversation, {.chat = ChatTemplate::gemma}, *tokenizer);
  EXPECT_EQ(show_encoded(encoded, *tokenizer, "{", "}"),
            "<bos><start_of_turn>user\nBe brief.\n\n Hi<end_of_turn>\n<start_of_turn>model\n"
            "{Hello!<end_of_turn>}\n<start_of_turn>user\n2+2?<end_of_turn>\n"
            "<start_of_turn>model\n{4<end_of_turn>}\n");
  conversation.turns.pop_back();
  EXPECT_EQ(tokenizer->decode(
                encode_conversation(conversation, {.chat = ChatTemplate::gemma}, *tokenizer).ids),
            "<bos><start_of_turn>user\nBe brief.\n\n Hi<end_of_turn>\n<start_of_turn>model\n"
            "Hello!<end_of_turn>\n<start_of_turn>user\n2+2?<end_of_turn>\n"
            "<start_of_turn>model\n");
}

// Other templates write each of them; these models have none.
TEST(ChatTemplate, TurnsOfOneRoleFollowEachOtherWhereTheModelAllowsIt) {
  Conversation conversation = talk();
  conversation.turns.insert(conversation.turns.begin() + 2, {.role = "user", .text = "there"});
  conversation.turns.insert(conversation.turns.begin() + 4, {.role = "system", .text = "Now."});
  auto tokenizer = chat_tokenizer(Vocabulary::bytes(), ChatTemplate::chatml);
  const auto encoded =
      encode_conversation(conversation, {.chat = ChatTemplate::chatml}, *tokenizer);
  EXPECT_EQ(show_encoded(encoded, *tokenizer, "{", "}"),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>user\nthere<|im_end|>\n<|im_start|>assistant\n{Hello!<|im_end|>}\n"
            "<|im_start|>system\nNow.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n"
            "<|im_start|>assistant\n{4<|im_end|>}\n");
  for (const auto& [chat, name] : {std::pair(ChatTemplate::gemma, "gemma"),
                                   {ChatTemplate::mistral, "mistral"},
                                   {ChatTemplate::llama2, "llama2"}}) {
    auto other = chat_tokenizer(Vocabulary::bytes(), chat);
    EXPECT_DATA_ERROR(encode_conversation(conversation, {.chat = chat}, *other),
                      fmt::format("here:1: a turn of the user follows one of the user, which "
                                  "template '{}' does not have",
                                  name));
  }
}

// The texts are those of jinja2 for the templates that are published with the models.
TEST(ChatTemplate, PhiOlmoAndGranite) {
  struct Written {
    ChatTemplate chat;
    std::string before_answer, answer;  ///< the second with its end, which is a target
  };
  for (const Written& written : std::vector<Written>{
           {ChatTemplate::phi3,
            "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\n{Hello!<|end|>}\n"
            "<|user|>\n2+2?<|end|>\n<|assistant|>\n",
            "{4<|end|>}\n"},
           {ChatTemplate::phi4,
            "<|im_start|>system<|im_sep|>Be brief.<|im_end|><|im_start|>user<|im_sep|>Hi<|im_end|>"
            "<|im_start|>assistant<|im_sep|>{Hello!<|im_end|>}<|im_start|>user<|im_sep|>2+2?"
            "<|im_end|><|im_start|>assistant<|im_sep|>",
            "{4<|im_end|>}"},
           {ChatTemplate::phi4_mini,
            "<|system|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>{Hello!<|end|>}<|user|>2+2?"
            "<|end|><|assistant|>",
            "{4<|end|>}"},
           {ChatTemplate::olmo2,
            "<|endoftext|><|system|>\nBe brief.\n<|user|>\nHi\n<|assistant|>\n{Hello!"
            "<|endoftext|>}\n<|user|>\n2+2?\n<|assistant|>\n",
            "{4<|endoftext|>}"},
           {ChatTemplate::granite,
            "<|start_of_role|>system<|end_of_role|>Be brief.<|end_of_text|>\n<|start_of_role|>user"
            "<|end_of_role|>Hi<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>{Hello!"
            "<|end_of_text|>}\n<|start_of_role|>user<|end_of_role|>2+2?<|end_of_text|>\n"
            "<|start_of_role|>assistant<|end_of_role|>",
            "{4<|end_of_text|>}\n"}}) {
    auto tokenizer = chat_tokenizer(Vocabulary::bytes(), written.chat);
    Conversation conversation = talk();
    const auto shown = [&] {
      return show_encoded(encode_conversation(conversation, {.chat = written.chat}, *tokenizer),
                          *tokenizer, "{", "}");
    };
    EXPECT_EQ(shown(), written.before_answer + written.answer);
    conversation.turns.pop_back();
    EXPECT_EQ(shown(), written.before_answer);
    EXPECT_EQ(chat_template_of(name_of(written.chat)), written.chat);
    // OLMo's marks are text, so that its tokens do not identify it, and the tokens of Phi-4-mini
    // differ from those of Phi-3 only by those of tools.
    EXPECT_EQ(guess_template(*tokenizer), written.chat == ChatTemplate::olmo2 ? ChatTemplate::plain
                                          : written.chat == ChatTemplate::phi4_mini
                                              ? ChatTemplate::phi3
                                              : written.chat);
  }
  KnownPieces phi;
  phi.controls = {{"<|assistant|>", 1}, {"<|end|>", 2}, {"<|tool|>", 3}, {"<|/tool|>", 4}};
  EXPECT_EQ(guess_template(phi), ChatTemplate::phi4_mini);
}

TEST(ChatTemplate, WithoutAnAnswerTheHeaderOfOneFollows) {
  auto tokenizer = chat_tokenizer(Vocabulary::bytes(), ChatTemplate::chatml);
  const Conversation asked{"here:1", "", {{.role = "user", .text = "Hi"}}};
  const auto encoded =
      encode_conversation(asked, {.chat = ChatTemplate::chatml, .system = "Be kind."}, *tokenizer);
  EXPECT_EQ(tokenizer->decode(encoded.ids),
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(encoded.counted, Marks(encoded.ids.size(), 0));
  EXPECT_EQ(tokenizer->vocab_size(), 258);
}

// A control token that a user writes is text, so only the template can end a turn.
TEST(ChatTemplate, ControlTokensInTextsAreText) {
  auto tokenizer = chat_tokenizer(Vocabulary::bytes(), ChatTemplate::chatml);
  const Conversation conversation{
      "here:1", "", {{.role = "user", .text = "<|im_end|>"}, {.role = "assistant", .text = "no"}}};
  const auto encoded =
      encode_conversation(conversation, {.chat = ChatTemplate::chatml}, *tokenizer);
  EXPECT_EQ(std::count(encoded.ids.begin(), encoded.ids.end(), 257), 2);
  EXPECT_EQ(show_encoded(encoded, *tokenizer, "[[", "]]"),
            "<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n[[no<|im_end|>]]\n");
}

TEST(ChatTemplate, ClipsAreNoTokens) {
  auto tokenizer = chat_tokenizer(Vocabulary::bytes(), ChatTemplate::llama2);
  const Conversation conversation{
      "here:1",
      "",
      {{.role = "system", .text = "S"},
       {.role = "user", .text = std::string("a ") + kAudioTag, .clips = {{"a.wav", 0, 1}}},
       {.role = "assistant", .text = "b"}}};
  const auto encoded =
      encode_conversation(conversation, {.chat = ChatTemplate::llama2}, *tokenizer);
  EXPECT_EQ(encoded.clips.size(), 1u);
  EXPECT_EQ(std::count(encoded.ids.begin(), encoded.ids.end(), kAudioPlaceholder), 1);
  EXPECT_EQ(show_encoded(encoded, *tokenizer, "{", "}"),
            "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\na <|audio|> [/INST]{b </s>}");
}

// Beginnings of the templates of Qwen2, Llama 3, Llama 2 and Mistral, and of an unknown one.
TEST(ChatTemplate, IsKnownByWhatItWrites) {
  const auto of = [](const char* jinja) { return template_written_by(jinja); };
  EXPECT_EQ(of("{{'<|im_start|>' + message['role'] + '\n'}}"), ChatTemplate::chatml);
  EXPECT_EQ(of("'<|start_header_id|>' + message['role'] + '<|end_header_id|>'"),
            ChatTemplate::llama3);
  EXPECT_EQ(of("'<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' %}[INST] "), ChatTemplate::llama2);
  EXPECT_EQ(of("{{ '[INST] ' + message['content'] + ' [/INST]' }}"), ChatTemplate::mistral);
  EXPECT_EQ(of("{{ '<start_of_turn>' + role + '\n' + message['content'] | trim }}"),
            ChatTemplate::gemma);
  EXPECT_EQ(of("{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{{ '<|assistant|>\\n' }}"),
            ChatTemplate::phi3);
  EXPECT_EQ(of("{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
               "{{ '<|assistant|>' }}"),
            ChatTemplate::phi4_mini);
  EXPECT_EQ(of("{{'<|' + message['role'] + '|>' + '\n' + message['content'] + '<|end|>\n' }}"
               "{{ '<|assistant|>\n' }}"),
            ChatTemplate::phi3)
      << "of Phi-3-small";
  EXPECT_EQ(of("{{'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'}}"),
            ChatTemplate::phi4);
  EXPECT_EQ(of("{{ bos_token }}{{ '<|assistant|>\\n' + message['content'] + eos_token }}"),
            ChatTemplate::olmo2);
  EXPECT_EQ(of("{{ '<|assistant|>\\n' + message['content'] + eos_token }}"), std::nullopt)
      << "of Zephyr";
  EXPECT_EQ(of("{{- '<|start_of_role|>user<|end_of_role|>' + message['content'] }}"),
            ChatTemplate::granite);
  EXPECT_EQ(of("{{ message['content'] }}"), std::nullopt);
  EXPECT_EQ(of(""), std::nullopt);
}

TEST(ChatTemplate, NamesWhatIsMissing) {
  KnownPieces empty;
  EXPECT_THROW(encode_conversation(talk(), {.chat = ChatTemplate::chatml}, empty), DataError);
  EXPECT_THROW(guess_template(empty), DataError);
  EXPECT_THROW(chat_template_of("jinja"), DeckError);
}

TEST(ConversationSet, KeepsWhatItGot) {
  ConversationSet set(50, 7, 3);
  set.add(Ids{1, 2, -1, 4}, Marks{0, 0, 0, 1}, std::vector<ClipOfFile>{{5, 1600}});
  set.add(Ids{9, 49}, Marks{1, 1}, {});
  const std::string bytes = set.serialise();
  const ConversationSet again = ConversationSet::deserialise(bytes, "memory");
  EXPECT_EQ(again.size(), 2);
  EXPECT_EQ(again.tokens(0), 4);
  EXPECT_EQ(again.counted(0), 1);
  EXPECT_EQ(again.counted(1), 1) << "nothing predicts the first token";
  EXPECT_EQ(again.clips(0).front(), (ClipOfFile{5, 1600}));
  Ids ids;
  Marks counted;
  again.read(0, ids, counted);
  EXPECT_EQ(ids, (Ids{1, 2, -1, 4}));
  EXPECT_EQ(counted, (Marks{0, 0, 0, 1}));
  EXPECT_EQ(again.hash(), set.hash());
  for (const std::size_t at : {0u, 9u, 20u, 50u, 70u, 120u}) {
    std::string bad = bytes;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    EXPECT_THROW(ConversationSet::deserialise(bad, "memory"), DataError) << at;
  }
  EXPECT_THROW(ConversationSet::deserialise(bytes.substr(0, bytes.size() - 1), "memory"),
               DataError);
  ConversationSet outside(9, 7, 3);
  outside.add(Ids{9}, Marks{0}, {});
  EXPECT_THROW(ConversationSet::deserialise(outside.serialise(), "memory"), DataError);
  ConversationSet no_clip(9, 7, 3);
  no_clip.add(Ids{-1}, Marks{0}, {});
  EXPECT_THROW(ConversationSet::deserialise(no_clip.serialise(), "memory"), DataError);
}

}  // namespace
}  // namespace choir
