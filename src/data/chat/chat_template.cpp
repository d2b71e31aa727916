#include "src/data/chat/chat_template.hpp"

#include <algorithm>
#include <array>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/core/output.hpp"
#include "src/core/text.hpp"
#include "src/data/chat/chat_program.hpp"
#include "src/data/vocabulary/bpe_tokenizer.hpp"
#include "src/data/vocabulary/sentencepiece.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/data/vocabulary/vocabulary_model.hpp"

namespace choir {
namespace {

class BpeChat final : public ChatTokenizer {
 public:
  explicit BpeChat(BpeTokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

  /// Control tokens in a user's text are encoded as text.
  std::vector<std::int32_t> encode(std::string_view text, std::string_view source) override {
    return encode_at(text, source, ChatPlace::start);
  }
  std::vector<std::int32_t> encode_at(std::string_view text, std::string_view source,
                                      ChatPlace place) override {
    return tokenizer_.encode(text, cache_,
                             {.special = false,
                              .behind_text = place == ChatPlace::inside,
                              .behind_token = place == ChatPlace::behind_token},
                             source);
  }
  std::optional<std::int32_t> control(std::string_view token) const override {
    return tokenizer_.added_token(token);
  }
  std::vector<std::string> controls() const override { return tokenizer_.added_tokens(); }
  std::string decode(std::vector<std::int32_t> ids) const override {
    return tokenizer_.decode(ids);
  }
  int vocab_size() const override { return tokenizer_.vocab_size(); }
  std::uint64_t hash() const override { return tokenizer_.hash(); }

 private:
  BpeTokenizer tokenizer_;
  PieceCache cache_;
};

class VocabularyChat final : public ChatTokenizer {
 public:
  VocabularyChat(Vocabulary vocabulary, std::vector<std::string> controls)
      : vocabulary_(std::move(vocabulary)), controls_(std::move(controls)) {
    std::erase_if(controls_, [&](const auto& token) { return vocabulary_.control(token); });
    if (vocabulary_.kind() != VocabularyKind::sentencepiece) return;
    const std::string json = vocabulary_.to_json();
    SentencePieceFile file = SentencePieceFile::parse(sentencepiece_bytes(json), "the tokenizer");
    for (const SentencePieceFile::Piece& piece : file.pieces)
      if (piece.kind == SentencePieceFile::Kind::control) own_controls_.push_back(piece.text);
    if (!file.blank_in_front) return;
    blank_at_start_only_ = parsed_json(json).value("blank_at_start_only", false);
    file.blank_in_front = false;
    without_blank_ = std::make_unique<Vocabulary>(
        Vocabulary::from_json(sentencepiece_json(file.bytes(), false), "the tokenizer"));
  }

  std::vector<std::int32_t> encode(std::string_view text, std::string_view source) override {
    return vocabulary_.encode(text, source);
  }
  std::vector<std::int32_t> encode_at(std::string_view text, std::string_view source,
                                      ChatPlace place) override {
    const bool with_blank =
        place == ChatPlace::start || (place == ChatPlace::behind_token && !blank_at_start_only_);
    const Vocabulary& used = with_blank || !without_blank_ ? vocabulary_ : *without_blank_;
    return used.encode(text, source);
  }
  std::vector<std::string> controls() const override {
    std::vector<std::string> all = own_controls_;
    all.insert(all.end(), controls_.begin(), controls_.end());
    return all;
  }
  std::optional<std::int32_t> control(std::string_view token) const override {
    if (const auto own = vocabulary_.control(token)) return own;
    const auto at = std::find(controls_.begin(), controls_.end(), token);
    if (at == controls_.end()) return std::nullopt;
    return vocabulary_.size() + static_cast<std::int32_t>(at - controls_.begin());
  }
  std::string decode(std::vector<std::int32_t> ids) const override {
    std::string text;
    for (auto from = ids.begin(); from != ids.end();) {
      const auto end =
          std::find_if(from, ids.end(), [&](std::int32_t id) { return id >= vocabulary_.size(); });
      if (end != from) text += vocabulary_.decode(std::vector<std::int32_t>(from, end));
      if (end == ids.end()) break;
      const auto at = static_cast<std::size_t>(*end - vocabulary_.size());
      if (at >= controls_.size())
        throw DataError(fmt::format("id {} is outside the vocabulary of {}", *end, vocab_size()));
      text += controls_[at];
      from = end + 1;
    }
    return text;
  }
  int vocab_size() const override {
    return vocabulary_.size() + static_cast<int>(controls_.size());
  }
  std::uint64_t hash() const override { return vocabulary_.hash(); }

 private:
  Vocabulary vocabulary_;
  std::vector<std::string> controls_;          ///< behind the entries of the vocabulary
  std::vector<std::string> own_controls_;      ///< among its entries
  std::unique_ptr<Vocabulary> without_blank_;  ///< adds no blank in front of a text
  bool blank_at_start_only_ = false;
};

std::vector<std::string> controls_of(ChatTemplate chat) {
  switch (chat) {
    case ChatTemplate::own:
      return {};
    case ChatTemplate::plain:
      return {"</s>"};
    case ChatTemplate::llama2:
    case ChatTemplate::mistral:
      return {"<s>", "</s>"};
    case ChatTemplate::chatml:
      return {"<|im_start|>", "<|im_end|>"};
    case ChatTemplate::gemma:
      return {"<bos>", "<start_of_turn>", "<end_of_turn>"};
    case ChatTemplate::phi3:
    case ChatTemplate::phi4_mini:
      return {"<|system|>", "<|user|>", "<|assistant|>", "<|end|>"};
    case ChatTemplate::phi4:
      return {"<|im_start|>", "<|im_sep|>", "<|im_end|>"};
    case ChatTemplate::olmo2:
      return {"<|endoftext|>"};
    case ChatTemplate::granite:
      return {"<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"};
    case ChatTemplate::llama3:
      return {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
  }
  return {};
}

}  // namespace

std::unique_ptr<ChatTokenizer> chat_tokenizer(BpeTokenizer tokenizer) {
  return std::make_unique<BpeChat>(std::move(tokenizer));
}

std::unique_ptr<ChatTokenizer> chat_tokenizer(Vocabulary vocabulary, ChatTemplate chat) {
  return std::make_unique<VocabularyChat>(std::move(vocabulary), controls_of(chat));
}

namespace {

using SharedProgram = std::shared_ptr<const ChatProgram>;

/// The template with this name; "" is the program, if there is one, or else `guess()`.
template <class Guess>
void choose_template(OpenedTokenizer& opened, const std::string& chat, SharedProgram program,
                     const std::string& source, const Guess& guess) {
  if (chat.empty() && program == nullptr)
    opened.chat = guess();
  else
    opened.chat = chat.empty() ? ChatTemplate::own : chat_template_of(chat);
  if (opened.chat != ChatTemplate::own) return;
  if (program == nullptr)
    throw DataError(fmt::format("'{}' has no chat template of its own", source),
                    "put chat_template.jinja or tokenizer_config.json beside tokenizer.json, or "
                    "specify another template");
  opened.program = std::move(program);
}

OpenedTokenizer opened_json(const std::string& json, const std::string& source,
                            const std::string& chat, SharedProgram program) {
  OpenedTokenizer opened;
  opened.tokenizer = chat_tokenizer(BpeTokenizer::from_json(json, source));
  choose_template(opened, chat, std::move(program), source,
                  [&] { return guess_template(*opened.tokenizer); });
  opened.json = json;
  opened.file_name = "tokenizer.json";
  return opened;
}

OpenedTokenizer opened_vocabulary(Vocabulary vocabulary, const std::string& chat,
                                  SharedProgram program, const std::string& source) {
  OpenedTokenizer opened;
  choose_template(opened, chat, std::move(program), source, [&] {
    const bool instructed = vocabulary.control("[INST]") && vocabulary.control("[/INST]");
    const bool turns = vocabulary.control("<start_of_turn>") && vocabulary.control("<end_of_turn>");
    const bool phi = vocabulary.control("<|assistant|>") && vocabulary.control("<|end|>");
    return instructed ? ChatTemplate::mistral
           : turns    ? ChatTemplate::gemma
           : phi      ? ChatTemplate::phi3
                      : ChatTemplate::plain;
  });
  opened.json = vocabulary.to_json();
  opened.file_name =
      vocabulary.kind() == VocabularyKind::sentencepiece ? "tokenizer.json" : "vocab.json";
  opened.tokenizer = chat_tokenizer(std::move(vocabulary), opened.chat);
  return opened;
}

}  // namespace

OpenedTokenizer open_chat_tokenizer(const std::string& name, const std::string& chat) {
  if (name == "byte") return opened_vocabulary(Vocabulary::bytes(), chat, nullptr, name);
  const std::string text = read_whole_file(name, kMostTokenizerMiB);
  SharedProgram program;
  if (chat.empty() || chat == name_of(ChatTemplate::own)) program = ChatProgram::beside(name);
  if (is_tokenizer_json(text) && !is_metaspace_bpe(text))
    return opened_json(text, name, chat, std::move(program));
  Vocabulary vocabulary = Vocabulary::load(name);
  if (vocabulary.kind() == VocabularyKind::bpe)
    return opened_json(vocabulary.to_json(), name, chat, std::move(program));
  return opened_vocabulary(std::move(vocabulary), chat, std::move(program), name);
}

OpenedTokenizer open_chat_tokenizer(const ChatForm& form, const std::string& source) {
  if (form.tokenizer.empty())
    throw DataError(source + " has no tokenizer", "prepare its data with 'choir prepare chat'");
  if (is_tokenizer_json(form.tokenizer))
    return opened_json(form.tokenizer, source, form.chat_template, form.program);
  return opened_vocabulary(Vocabulary::from_json(form.tokenizer, source), form.chat_template,
                           form.program, source);
}

std::string ChatForm::to_json() const {
  nlohmann::ordered_json json;
  json["chat_template"] = chat_template;
  json["system"] = system;
  json["tokenizer"] = tokenizer;
  if (program != nullptr) {
    json["program"] = program->source();
    json["program_tokens"] = program->tokens();
  }
  return dumped(json);
}

ChatForm ChatForm::from_json(const std::string& json, const std::string& source) {
  ChatForm form;
  nlohmann::json parsed;
  if (!is_tokenizer_json(json)) parsed = read_json(json, "the tokenizer of " + source);
  if (!parsed.is_object() || !parsed.contains("chat_template")) {
    form.tokenizer = json;
    return form;
  }
  for (const auto& [key, to] : {std::pair("chat_template", &form.chat_template),
                                {"system", &form.system},
                                {"tokenizer", &form.tokenizer}}) {
    if (!parsed.contains(key) || !parsed[key].is_string())
      throw DataError(fmt::format("the tokenizer of {} is damaged: no '{}'", source, key));
    *to = parsed[key].get<std::string>();
  }
  form.program = program_of_json(parsed);
  return form;
}

OpenedTokenizer chat_tokenizer_of(const std::string& json, const std::string& chat,
                                  std::int64_t model_ids, const std::string& source) {
  const ChatForm form = ChatForm::from_json(json, source);
  const std::string& name = chat.empty() ? form.chat_template : chat;
  OpenedTokenizer opened;
  if (is_tokenizer_json(form.tokenizer)) {
    opened = opened_json(form.tokenizer, source, name, form.program);
    opened.system = form.system;
    return opened;
  }
  const Vocabulary vocabulary = Vocabulary::from_json(form.tokenizer, source);
  opened = opened_vocabulary(vocabulary, name, form.program, source);
  opened.system = form.system;
  // The embedding table may have more rows than a vocabulary that contains its control tokens.
  const std::int64_t ids = opened.tokenizer->vocab_size();
  if (ids == vocabulary.size() ? ids > model_ids : ids != model_ids)
    throw DataError(
        fmt::format(
            "{}: the model has {} ids, but its vocabulary with the control tokens of template "
            "'{}' has {}",
            source, model_ids, name_of(opened.chat), opened.tokenizer->vocab_size()),
        std::string("if it was trained on conversations, specify the template of their "
                    "preparation: ") +
            kChatTemplates);
  return opened;
}

namespace {

struct Named {
  ChatTemplate chat;
  const char* name;
};
constexpr std::array kNames{
    Named{ChatTemplate::plain, "plain"},         Named{ChatTemplate::llama2, "llama2"},
    Named{ChatTemplate::llama3, "llama3"},       Named{ChatTemplate::chatml, "chatml"},
    Named{ChatTemplate::mistral, "mistral"},     Named{ChatTemplate::gemma, "gemma"},
    Named{ChatTemplate::phi3, "phi3"},           Named{ChatTemplate::phi4, "phi4"},
    Named{ChatTemplate::phi4_mini, "phi4_mini"}, Named{ChatTemplate::olmo2, "olmo2"},
    Named{ChatTemplate::granite, "granite"},     Named{ChatTemplate::own, "own"}};

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
    if (options_.chat == ChatTemplate::gemma) control("<bos>");
    if (options_.chat == ChatTemplate::olmo2) control("<|endoftext|>");
    if (!has_system_turns(options_.chat)) fold_system(turns);
    if (alternates(options_.chat)) require_alternating(turns);
    for (const Turn& turn : turns) {
      add(turn);
      if (breaks_line_behind(options_.chat, turn, &turn == &turns.back())) text("\n");
    }
    if (turns.empty() || turns.back().role != "assistant") header("assistant");
    return std::move(out_);
  }

 private:
  static bool has_system_turns(ChatTemplate chat) {
    using enum ChatTemplate;
    return chat == llama3 || chat == chatml || chat == phi3 || chat == phi4 || chat == phi4_mini ||
           chat == olmo2 || chat == granite;
  }
  /// True for templates of models whose users and answers take turns.
  static bool alternates(ChatTemplate chat) {
    return chat == ChatTemplate::llama2 || chat == ChatTemplate::mistral ||
           chat == ChatTemplate::gemma;
  }
  void require_alternating(const std::vector<Turn>& turns) const {
    for (std::size_t i = 1; i < turns.size(); ++i)
      if (turns[i].role == turns[i - 1].role || turns[i].role == "system")
        throw DataError(
            fmt::format("{}: a turn of the {} follows one of the {}, which template '{}' does not "
                        "have",
                        conversation_.place, turns[i].role, turns[i - 1].role,
                        name_of(options_.chat)),
            "join turns of one role into one, and make a system turn the first");
  }
  /// A line break that belongs to no turn; OLMo's ends the texts of other turns than answers.
  static bool breaks_line_behind(ChatTemplate chat, const Turn& turn, bool last) {
    using enum ChatTemplate;
    if (chat == olmo2) return turn.role == "assistant" && !last;
    return chat == chatml || chat == gemma || chat == phi3 || chat == granite;
  }
  void control(const std::string& token, bool counted = false) {
    push(need(tokenizer_, options_.chat, token.c_str()), counted);
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
    } else if (options_.chat == ChatTemplate::gemma) {
      control("<start_of_turn>");
      text((role == "assistant" ? "model" : role) + "\n" + std::string(behind));
    } else if (options_.chat == ChatTemplate::llama3) {
      control("<|start_header_id|>");
      text(role);
      control("<|end_header_id|>");
      text("\n\n" + std::string(behind));
    } else if (options_.chat == ChatTemplate::phi3) {
      control("<|" + role + "|>");
      text("\n" + std::string(behind));
    } else if (options_.chat == ChatTemplate::phi4_mini) {
      control("<|" + role + "|>");
      text(behind);
    } else if (options_.chat == ChatTemplate::olmo2) {
      text("<|" + role + "|>\n" + std::string(behind));
    } else if (options_.chat == ChatTemplate::phi4 || options_.chat == ChatTemplate::granite) {
      const bool phi = options_.chat == ChatTemplate::phi4;
      control(phi ? "<|im_start|>" : "<|start_of_role|>");
      text(role);
      control(phi ? "<|im_sep|>" : "<|end_of_role|>");
      text(behind);
    }
  }

  void add(const Turn& turn) {
    out_.clips.insert(out_.clips.end(), turn.clips.begin(), turn.clips.end());
    const bool answer = turn.role == "assistant", counted = answer && turn.counts;
    const bool trims =
        options_.chat == ChatTemplate::llama3 || options_.chat == ChatTemplate::gemma;
    const std::string said = trims ? std::string(trim(turn.text)) : turn.text;
    switch (options_.chat) {
      case ChatTemplate::chatml:
      case ChatTemplate::llama3:
      case ChatTemplate::gemma:
      case ChatTemplate::phi3:
      case ChatTemplate::phi4:
      case ChatTemplate::phi4_mini:
      case ChatTemplate::granite:
        header(turn.role, answer ? std::string_view() : std::string_view(said));
        if (answer) text(said, counted);
        push(end_of_turn(options_.chat, tokenizer_), counted);
        return;
      case ChatTemplate::olmo2:
        header(turn.role, answer ? "" : said + "\n");
        if (answer) text(said, counted);
        break;
      case ChatTemplate::llama2:
        if (!answer) control("<s>");
        text(answer ? said + " " : "[INST] " + said + " [/INST]", counted);
        break;
      case ChatTemplate::mistral:
        add_mistral(said, answer, counted);
        break;
      case ChatTemplate::plain:
      case ChatTemplate::own:
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
                  std::string("use own, ") + kChatTemplates);
}

std::string_view name_of(ChatTemplate chat) {
  for (const Named& named : kNames)
    if (chat == named.chat) return named.name;
  return "?";
}

std::optional<ChatTemplate> template_written_by(std::string_view jinja) {
  const auto has = [&](std::string_view mark) { return jinja.find(mark) != jinja.npos; };
  for (const auto& [mark, chat] : {std::pair("<|im_sep|>", ChatTemplate::phi4),
                                   {"<|im_start|>", ChatTemplate::chatml},
                                   {"<|start_header_id|>", ChatTemplate::llama3},
                                   {"<start_of_turn>", ChatTemplate::gemma},
                                   {"<|start_of_role|>", ChatTemplate::granite},
                                   {"<<SYS>>", ChatTemplate::llama2},
                                   {"[INST]", ChatTemplate::mistral}})
    if (has(mark)) return chat;
  // Phi-4-mini has the tokens of Phi-3 without the line breaks, and Zephyr the marks of OLMo with
  // another end of the user's turns and without a token in front.
  if (has("message['role'] + '|>' + message['content'] + '<|end|>'"))
    return ChatTemplate::phi4_mini;
  const bool breaks = has("|>\\n") || has("|>\n") || has("|>' + '\\n'") || has("|>' + '\n'");
  if (has("<|assistant|>") && has("<|end|>") && breaks) return ChatTemplate::phi3;
  const bool begins = has("bos_token") || has("{{ '<|endoftext|>' }}");
  if (has("<|assistant|>") && !has("<|end|>") && begins && breaks) return ChatTemplate::olmo2;
  return std::nullopt;
}

// Tokens that end a turn of the template `plain`, where a tokenizer has them.
constexpr std::array kPlainEnds{"<|endoftext|>", "<|end_of_text|>", "<eos>"};

ChatTemplate guess_template(const ChatTokenizer& tokenizer) {
  const auto has = [&](const char* token) { return tokenizer.control(token).has_value(); };
  if (has("<|im_start|>") && has("<|im_end|>"))
    return has("<|im_sep|>") ? ChatTemplate::phi4 : ChatTemplate::chatml;
  if (has("<|start_header_id|>") && has("<|eot_id|>")) return ChatTemplate::llama3;
  if (has("[INST]") && has("[/INST]")) return ChatTemplate::mistral;
  if (has("<start_of_turn>") && has("<end_of_turn>")) return ChatTemplate::gemma;
  if (has("<|start_of_role|>") && has("<|end_of_role|>")) return ChatTemplate::granite;
  if (has("<|assistant|>") && has("<|end|>"))
    return has("<|/tool|>") ? ChatTemplate::phi4_mini : ChatTemplate::phi3;
  for (const char* end : kPlainEnds)
    if (has(end)) return ChatTemplate::plain;
  throw DataError("the control tokens of this tokenizer match no known template",
                  std::string("specify one with --template: ") + kChatTemplates);
}

std::int32_t end_of_turn(ChatTemplate chat, const ChatTokenizer& tokenizer) {
  if (chat == ChatTemplate::chatml || chat == ChatTemplate::phi4)
    return need(tokenizer, chat, "<|im_end|>");
  if (chat == ChatTemplate::llama3) return need(tokenizer, chat, "<|eot_id|>");
  if (chat == ChatTemplate::gemma) return need(tokenizer, chat, "<end_of_turn>");
  if (chat == ChatTemplate::phi3 || chat == ChatTemplate::phi4_mini)
    return need(tokenizer, chat, "<|end|>");
  if (chat == ChatTemplate::olmo2) return need(tokenizer, chat, "<|endoftext|>");
  if (chat == ChatTemplate::granite) return need(tokenizer, chat, "<|end_of_text|>");
  if (chat == ChatTemplate::plain)
    for (const char* token : kPlainEnds)
      if (const auto id = tokenizer.control(token)) return *id;
  return need(tokenizer, chat, "</s>");
}

std::int32_t end_of_turn(const OpenedTokenizer& opened) {
  return opened.program != nullptr ? end_of_turn(*opened.program, *opened.tokenizer).id
                                   : end_of_turn(opened.chat, *opened.tokenizer);
}

EncodedConversation encode_conversation(const Conversation& conversation,
                                        const ChatOptions& options, ChatTokenizer& tokenizer) {
  if (options.chat == ChatTemplate::own) {
    CHOIR_CHECK(options.program != nullptr, "no program of the template");
    return encode_by_program(*options.program, conversation, options.system, tokenizer);
  }
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
