#include <algorithm>

#include "choir/core/error.hpp"
#include "choir/core/json_text.hpp"
#include "choir/core/json_value.hpp"
#include "choir/data/conversations/chat_template.hpp"
#include "choir/data/vocabulary/bpe_tokenizer.hpp"
#include "choir/data/vocabulary/vocabulary.hpp"
#include "src/data/posix_file.hpp"
#include "src/data/vocabulary/vocabulary_model.hpp"

namespace choir {
namespace {

class BpeChat final : public ChatTokenizer {
 public:
  explicit BpeChat(BpeTokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

  /// Control tokens in a user's text are encoded as text.
  std::vector<std::int32_t> encode(std::string_view text, std::string_view source) override {
    return tokenizer_.encode(text, cache_, {.special = false, .around = false}, source);
  }
  std::optional<std::int32_t> control(std::string_view token) const override {
    return tokenizer_.added_token(token);
  }
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
  }

  std::vector<std::int32_t> encode(std::string_view text, std::string_view source) override {
    return vocabulary_.encode(text, source);
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
  std::vector<std::string> controls_;
};

std::vector<std::string> controls_of(ChatTemplate chat) {
  switch (chat) {
    case ChatTemplate::plain:
      return {"</s>"};
    case ChatTemplate::llama2:
    case ChatTemplate::mistral:
      return {"<s>", "</s>"};
    case ChatTemplate::chatml:
      return {"<|im_start|>", "<|im_end|>"};
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

OpenedTokenizer opened_json(const std::string& json, const std::string& source,
                            const std::string& chat) {
  OpenedTokenizer opened;
  opened.tokenizer = chat_tokenizer(BpeTokenizer::from_json(json, source));
  opened.chat = chat.empty() ? guess_template(*opened.tokenizer) : chat_template_of(chat);
  opened.json = json;
  opened.file_name = "tokenizer.json";
  return opened;
}

OpenedTokenizer opened_vocabulary(Vocabulary vocabulary, const std::string& chat) {
  OpenedTokenizer opened;
  const bool instructed = vocabulary.control("[INST]") && vocabulary.control("[/INST]");
  opened.chat = !chat.empty() ? chat_template_of(chat)
                : instructed  ? ChatTemplate::mistral
                              : ChatTemplate::plain;
  opened.json = vocabulary.to_json();
  opened.file_name =
      vocabulary.kind() == VocabularyKind::sentencepiece ? "tokenizer.json" : "vocab.json";
  opened.tokenizer = chat_tokenizer(std::move(vocabulary), opened.chat);
  return opened;
}

}  // namespace

OpenedTokenizer open_chat_tokenizer(const std::string& name, const std::string& chat) {
  if (name == "byte") return opened_vocabulary(Vocabulary::bytes(), chat);
  const std::string text = read_whole_file(name, kMostTokenizerMiB);
  if (is_tokenizer_json(text)) return opened_json(text, name, chat);
  return opened_vocabulary(Vocabulary::load(name), chat);
}

OpenedTokenizer open_chat_tokenizer(const ChatForm& form, const std::string& source) {
  if (form.tokenizer.empty())
    throw DataError(source + " has no tokenizer", "prepare its data with 'choir prepare chat'");
  if (is_tokenizer_json(form.tokenizer))
    return opened_json(form.tokenizer, source, form.chat_template);
  return opened_vocabulary(Vocabulary::from_json(form.tokenizer, source), form.chat_template);
}

std::string ChatForm::to_json() const {
  nlohmann::ordered_json json;
  json["chat_template"] = chat_template;
  json["system"] = system;
  json["tokenizer"] = tokenizer;
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
  return form;
}

OpenedTokenizer chat_tokenizer_of(const std::string& json, const std::string& chat,
                                  std::int64_t model_ids, const std::string& source) {
  const ChatForm form = ChatForm::from_json(json, source);
  const std::string& name = chat.empty() ? form.chat_template : chat;
  if (is_tokenizer_json(form.tokenizer)) return opened_json(form.tokenizer, source, name);
  const Vocabulary vocabulary = Vocabulary::from_json(form.tokenizer, source);
  OpenedTokenizer opened = opened_vocabulary(vocabulary, name);
  // The embedding table may have more rows than a vocabulary that contains its control tokens.
  const std::int64_t ids = opened.tokenizer->vocab_size();
  if (ids == vocabulary.size() ? ids > model_ids : ids != model_ids)
    throw DataError(
        fmt::format(
            "{}: the model has {} ids, but its vocabulary with the control tokens of template "
            "'{}' has {}",
            source, model_ids, name_of(opened.chat), opened.tokenizer->vocab_size()),
        "if it was trained on conversations, specify the template of their preparation: plain, "
        "llama2, llama3, chatml or mistral");
  return opened;
}

}  // namespace choir
