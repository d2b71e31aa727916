#include "choir/data/conversations/chat_template.hpp"

#include <algorithm>
#include <array>

#include "choir/core/error.hpp"
#include "choir/core/printable.hpp"
#include "choir/core/text.hpp"

namespace choir {
namespace {

struct Named {
  ChatTemplate chat;
  const char* name;
};
constexpr std::array kNames{
    Named{ChatTemplate::plain, "plain"}, Named{ChatTemplate::llama2, "llama2"},
    Named{ChatTemplate::llama3, "llama3"}, Named{ChatTemplate::chatml, "chatml"},
    Named{ChatTemplate::mistral, "mistral"}};

std::int32_t need(const ChatTokenizer& tokenizer, ChatTemplate chat, const char* token) {
  const auto id = tokenizer.control(token);
  if (!id)
    throw DataError(fmt::format("the tokenizer has no token '{}', which template '{}' needs", token,
                                name_of(chat)),
                    "specify the template of this model, or plain");
  return *id;
}

/// Renders one conversation piece by piece.
class Renderer {
 public:
  Renderer(const Conversation& conversation, const ChatOptions& options, ChatTokenizer& tokenizer)
      : conversation_(conversation), options_(options), tokenizer_(tokenizer) {}

  EncodedConversation render() {
    std::vector<Turn> turns = conversation_.turns;
    if (!options_.system.empty() && (turns.empty() || turns.front().role != "system"))
      turns.insert(turns.begin(), {.role = "system", .text = options_.system});
    if (options_.chat == ChatTemplate::llama3) control("<|begin_of_text|>");
    if (options_.chat == ChatTemplate::mistral) control("<s>");
    const bool own_turn =
        options_.chat == ChatTemplate::llama3 || options_.chat == ChatTemplate::chatml;
    if (!own_turn) fold_system(turns);
    for (const Turn& turn : turns) add(turn);
    if (turns.empty() || turns.back().role != "assistant") header("assistant");
    return std::move(out_);
  }

 private:
  void control(const char* token, bool counted = false) {
    push(need(tokenizer_, options_.chat, token), counted);
  }
  void push(std::int32_t id, bool counted) {
    out_.ids.push_back(id);
    out_.counted.push_back(counted);
  }
  /// Appends text. Audio tags become placeholders.
  void text(std::string_view text, bool counted = false) {
    const std::string_view tag = kAudioTag;
    for (;;) {
      const auto at = text.find(tag);
      if (const auto piece = text.substr(0, at); !piece.empty())
        for (const std::int32_t id : tokenizer_.encode(piece, conversation_.place))
          push(id, counted);
      if (at == std::string_view::npos) return;
      push(kAudioPlaceholder, false);
      text.remove_prefix(at + tag.size());
    }
  }

  void fold_system(std::vector<Turn>& turns) const {
    if (turns.empty() || turns.front().role != "system") return;
    const Turn system = turns.front();
    turns.erase(turns.begin());
    const std::string head = options_.chat == ChatTemplate::llama2
                                 ? "<<SYS>>\n" + system.text + "\n<</SYS>>\n\n"
                                 : system.text + "\n\n";
    if (turns.empty() || turns.front().role != "user")
      turns.insert(turns.begin(), {.role = "user", .text = head, .clips = system.clips});
    else
      turns.front().text = head + turns.front().text;
  }

  /// Appends the header of a turn. The text of a user's turn is encoded together with it, so that
  /// the tokenizer sees both as one text.
  void header(const std::string& role, std::string_view behind = "") {
    if (options_.chat == ChatTemplate::chatml) {
      control("<|im_start|>");
      text(role + "\n" + std::string(behind));
    } else if (options_.chat == ChatTemplate::llama3) {
      control("<|start_header_id|>");
      text(role);
      control("<|end_header_id|>");
      text("\n\n" + std::string(behind));
    }
  }

  void add(const Turn& turn) {
    out_.clips.insert(out_.clips.end(), turn.clips.begin(), turn.clips.end());
    const bool answer = turn.role == "assistant", counted = answer && turn.counts;
    const std::string said =
        options_.chat == ChatTemplate::llama3 ? std::string(trim(turn.text)) : turn.text;
    switch (options_.chat) {
      case ChatTemplate::chatml:
      case ChatTemplate::llama3:
        header(turn.role, answer ? std::string_view() : std::string_view(said));
        if (answer) text(said, counted);
        push(end_of_turn(options_.chat, tokenizer_), counted);
        if (options_.chat == ChatTemplate::chatml) text("\n");
        return;
      case ChatTemplate::llama2:
        if (!answer) control("<s>");
        text(answer ? said + " " : "[INST] " + said + " [/INST]", counted);
        break;
      case ChatTemplate::mistral:
        add_mistral(said, answer, counted);
        break;
      case ChatTemplate::plain:
        text(said, counted);
        break;
    }
    if (answer) push(end_of_turn(options_.chat, tokenizer_), counted);
  }

  /// [INST] and [/INST] are control tokens from Mistral's second version on; before, they are text.
  void add_mistral(const std::string& said, bool answer, bool counted) {
    if (answer) return text(said, counted);
    if (!tokenizer_.control("[INST]")) return text("[INST] " + said + " [/INST]");
    control("[INST]");
    text(said);
    control("[/INST]");
  }

  const Conversation& conversation_;
  const ChatOptions& options_;
  ChatTokenizer& tokenizer_;
  EncodedConversation out_;
};

}  // namespace

ChatTemplate chat_template_of(std::string_view name) {
  if (name == "qwen") return ChatTemplate::chatml;
  for (const Named& named : kNames)
    if (name == named.name) return named.chat;
  throw DeckError(fmt::format("unknown template '{}'", name),
                  "use plain, llama2, llama3, chatml (qwen) or mistral");
}

std::string_view name_of(ChatTemplate chat) {
  for (const Named& named : kNames)
    if (chat == named.chat) return named.name;
  return "?";
}

std::optional<ChatTemplate> template_written_by(std::string_view jinja) {
  for (const auto& [mark, chat] : {std::pair("<|im_start|>", ChatTemplate::chatml),
                                   {"<|start_header_id|>", ChatTemplate::llama3},
                                   {"<<SYS>>", ChatTemplate::llama2},
                                   {"[INST]", ChatTemplate::mistral}})
    if (jinja.find(mark) != std::string_view::npos) return chat;
  return std::nullopt;
}

ChatTemplate guess_template(const ChatTokenizer& tokenizer) {
  const auto has = [&](const char* token) { return tokenizer.control(token).has_value(); };
  if (has("<|im_start|>") && has("<|im_end|>")) return ChatTemplate::chatml;
  if (has("<|start_header_id|>") && has("<|eot_id|>")) return ChatTemplate::llama3;
  if (has("[INST]") && has("[/INST]")) return ChatTemplate::mistral;
  throw DataError("the control tokens of this tokenizer match no known template",
                  "specify one with --template: plain, llama2, llama3, chatml or mistral");
}

std::int32_t end_of_turn(ChatTemplate chat, const ChatTokenizer& tokenizer) {
  if (chat == ChatTemplate::chatml) return need(tokenizer, chat, "<|im_end|>");
  if (chat == ChatTemplate::llama3) return need(tokenizer, chat, "<|eot_id|>");
  if (chat == ChatTemplate::plain)
    for (const char* token : {"<|endoftext|>", "<|end_of_text|>", "<eos>"})
      if (const auto id = tokenizer.control(token)) return *id;
  return need(tokenizer, chat, "</s>");
}

EncodedConversation encode_conversation(const Conversation& conversation,
                                        const ChatOptions& options, ChatTokenizer& tokenizer) {
  return Renderer(conversation, options, tokenizer).render();
}

std::string show_encoded(const EncodedConversation& encoded, const ChatTokenizer& tokenizer,
                         std::string_view before, std::string_view behind) {
  std::string shown;
  for (std::size_t i = 0; i < encoded.ids.size();) {
    std::size_t end = i;
    std::vector<std::int32_t> run;
    while (end < encoded.ids.size() && encoded.counted[end] == encoded.counted[i] &&
           (encoded.ids[end] < 0) == (encoded.ids[i] < 0))
      run.push_back(encoded.ids[end++]);
    if (encoded.ids[i] < 0) {
      for (std::size_t k = i; k < end; ++k) shown += kAudioTag;
    } else {
      const std::string text = printable(tokenizer.decode(run));
      shown += encoded.counted[i] ? std::string(before) + text + std::string(behind) : text;
    }
    i = end;
  }
  return shown;
}

}  // namespace choir
