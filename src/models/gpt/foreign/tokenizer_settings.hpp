#pragma once
// The settings of a language model beside its tokens and its weights: the ids that begin, end, pad
// and replace text, the settings of generation, and the template of chats. They are held in the
// form of the files of transformers, in which an import keeps them (RUN/tokenizer), and converted
// from and to keys of GGUF:
//
//   file of transformers                          key of GGUF
//   bos_token(_id), pad_token(_id), unk_token     tokenizer.ggml.{bos,padding,unknown}_token_id
//   eos_token(_id), one or a list                 tokenizer.ggml.{eos,eot,eom}_token_id
//   add_bos_token, add_eos_token                  tokenizer.ggml.{add_bos_token,add_eos_token}
//   chat_template                                 tokenizer.chat_template
//   temperature, top_k, top_p, min_p,             general.sampling.{temp,top_k,top_p,min_p,
//   repetition_penalty (if do_sample)               penalty_repeat}
//   the ids of config.json, and the whole of      choir.{config_ids,generation_config,
//   generation_config.json, tokenizer_config.json   tokenizer_config}, for settings without a key

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "src/data/vocabulary/vocabulary.hpp"
#include "src/store/gguf/gguf.hpp"

namespace choir {

struct SpecialToken {
  std::int64_t id = 0;
  std::string text;
};

class TokenizerSettings {
 public:
  TokenizerSettings() = default;
  /// The files in a folder, as far as they are there. Local. Throws StorageError for files that
  /// cannot be read, and JsonError for damaged ones.
  static TokenizerSettings of_folder(const std::string& folder);
  /// The metadata of a model, or of a tokenizer alone.
  static TokenizerSettings of_gguf(const GgufMetadata& metadata);
  /// The tokens that begin and end a text; empty for characters and bytes.
  static TokenizerSettings of_vocabulary(const Vocabulary& vocabulary);

  bool empty() const { return files_.empty(); }
  /// Texts by file name.
  const std::map<std::string, std::string>& files() const { return files_; }
  const std::string& file(const std::string& name) const;

  /// {"bos_token_id": 1, "eos_token_id": [2, 0], ...} of config.json, and for ids that it does not
  /// have, of generation_config.json.
  std::string ids_json() const;
  /// The tokens that end generation, the most important first.
  std::vector<std::int64_t> ends() const;
  /// The Jinja program; "": none.
  std::string chat_template() const;
  /// Names of further templates, such as "tool_use".
  const std::vector<std::string>& other_templates() const { return other_templates_; }

  /// Makes this token the first that ends generation; the others end it as well.
  void end_turns_with(const SpecialToken& token);
  void set_chat_template(const std::string& program);
  /// Adds ids of config.json that generation_config.json does not have, for folders without the
  /// former.
  void complete_generation_ids();
  /// Adds tokens behind those of the tokenizer's own file.
  void add_tokens(const std::vector<SpecialToken>& tokens);

  /// The metadata with the keys of these settings, which replace those that are there. Ids of
  /// tokens that are given as text are looked up in tokenizer.ggml.tokens.
  GgufMetadata added_to(const GgufMetadata& metadata) const;

 private:
  nlohmann::ordered_json json(const std::string& name) const;
  void set(const std::string& name, const nlohmann::ordered_json& json);
  /// The id under `key` (eos_token_id) in config.json or generation_config.json.
  nlohmann::ordered_json id_of(const char* key) const;

  std::map<std::string, std::string> files_;
  std::vector<std::string> other_templates_;
};

}  // namespace choir
