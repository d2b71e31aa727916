#include "src/models/gpt/foreign/tokenizer_settings.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/data/vocabulary/sentencepiece.hpp"
#include "src/store/directory.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kConfig = "config.json";
constexpr const char* kGeneration = "generation_config.json";
constexpr const char* kTokenizer = "tokenizer_config.json";
constexpr const char* kTokenMap = "special_tokens_map.json";
constexpr const char* kTemplate = "chat_template.jinja";
constexpr const char* kAdded = "added_tokens.json";
constexpr std::array kFiles{kConfig, kGeneration, kTokenizer, kTokenMap, kTemplate, kAdded};

/// A kind of token under its names in both programs.
struct Role {
  const char* id;    ///< in config.json
  const char* text;  ///< in tokenizer_config.json
  const char* gguf;
};
constexpr Role kBos{"bos_token_id", "bos_token", "tokenizer.ggml.bos_token_id"};
constexpr Role kEos{"eos_token_id", "eos_token", "tokenizer.ggml.eos_token_id"};
constexpr Role kPad{"pad_token_id", "pad_token", "tokenizer.ggml.padding_token_id"};
constexpr Role kUnk{"unk_token_id", "unk_token", "tokenizer.ggml.unknown_token_id"};
constexpr std::array kRoles{kBos, kEos, kPad, kUnk};
// llama.cpp ends generation at each of these.
constexpr std::array kFurtherEnds{"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
constexpr std::array kFlags{
    std::pair("add_bos_token", "tokenizer.ggml.add_bos_token"),
    std::pair("add_eos_token", "tokenizer.ggml.add_eos_token"),
};
constexpr std::array kReals{
    std::pair("temperature", "general.sampling.temp"),
    std::pair("top_p", "general.sampling.top_p"),
    std::pair("min_p", "general.sampling.min_p"),
    std::pair("repetition_penalty", "general.sampling.penalty_repeat"),
};
constexpr const char* kTopK = "general.sampling.top_k";
constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kProgram = "tokenizer.chat_template";
constexpr const char* kOwnIds = "choir.config_ids";
constexpr const char* kOwnGeneration = "choir.generation_config";
constexpr const char* kOwnTokenizer = "choir.tokenizer_config";

/// The text of a token, which may be an object with flags.
std::string text_of(const Json& token) {
  if (token.is_string()) return token.get<std::string>();
  if (token.is_object() && token.contains("content") && token["content"].is_string())
    return token["content"].get<std::string>();
  return "";
}

/// One id or a list.
std::vector<std::int64_t> ids_of(const Json& value) {
  std::vector<std::int64_t> ids;
  const auto add = [&](const Json& one) {
    if (!one.is_number_integer()) return;
    const auto id = one.get<std::int64_t>();
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  };
  if (value.is_array())
    for (const Json& one : value) add(one);
  else
    add(value);
  return ids;
}

Json id_or_list(const std::vector<std::int64_t>& ids) {
  if (ids.size() == 1) return ids.front();
  return ids;
}

Json object_of(const std::string& text, const std::string& source) {
  if (text.empty()) return Json::object();
  Json json = read_ordered_json(text, source, {.keys = kAnyNumberOfKeys});
  if (!json.is_object()) throw DataError(fmt::format("'{}' is no JSON object", source));
  return json;
}

/// A float as the decimal number that it was rounded from.
double meant(float value) {
  return std::stod(fmt::format("{}", value));
}

}  // namespace

const std::string& TokenizerSettings::file(const std::string& name) const {
  static const std::string none;
  const auto found = files_.find(name);
  return found == files_.end() ? none : found->second;
}

Json TokenizerSettings::json(const std::string& name) const {
  return object_of(file(name), name);
}

void TokenizerSettings::set(const std::string& name, const Json& json) {
  files_[name] = dumped(json, 2) + "\n";
}

TokenizerSettings TokenizerSettings::of_folder(const std::string& folder) {
  TokenizerSettings settings;
  for (const char* name : kFiles) {
    const fs::path path = fs::path(folder) / name;
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) continue;
    std::string text = read_text_file(path.string());
    if (std::string_view(name).ends_with(".json")) object_of(text, path.string());
    settings.files_[name] = std::move(text);
  }
  const Json programs = settings.json(kTokenizer).value("chat_template", Json());
  if (programs.is_array())
    for (const Json& one : programs)
      if (one.is_object() && one.value("name", "") != "default")
        settings.other_templates_.push_back(one.value("name", ""));
  std::error_code ignored;
  const fs::path more = fs::path(folder) / "additional_chat_templates";
  if (fs::is_directory(more, ignored))
    for (const auto& entry : fs::directory_iterator(more, ignored))
      settings.other_templates_.push_back(entry.path().stem().string());
  return settings;
}

std::string TokenizerSettings::chat_template() const {
  if (const std::string& program = file(kTemplate); !program.empty()) return program;
  const Json programs = json(kTokenizer).value("chat_template", Json());
  if (programs.is_string()) return programs.get<std::string>();
  if (programs.is_array())
    for (const Json& one : programs)
      if (one.is_object() && one.value("name", "") == "default") return one.value("template", "");
  return "";
}

Json TokenizerSettings::id_of(const char* key) const {
  for (const char* name : {kConfig, kGeneration}) {
    const Json held = json(name);
    if (held.contains(key) && !held[key].is_null()) return held[key];
  }
  return nullptr;
}

std::string TokenizerSettings::ids_json() const {
  Json all = Json::object();
  const Json config = json(kConfig);
  for (const char* key : {kBos.id, kEos.id, kPad.id})
    if (const Json id = id_of(key); !id.is_null() || config.contains(key)) all[key] = id;
  return all.empty() ? "" : dumped(all);
}

std::vector<std::int64_t> TokenizerSettings::ends() const {
  Json all = Json::array();
  for (const char* name : {kGeneration, kConfig})
    for (const std::int64_t id : ids_of(json(name).value(kEos.id, Json()))) all.push_back(id);
  return ids_of(all);
}

void TokenizerSettings::end_turns_with(const SpecialToken& token) {
  std::vector<std::int64_t> all = ends();
  const bool known = !all.empty() && all.front() == token.id;
  if (!known) {
    std::erase(all, token.id);
    all.insert(all.begin(), token.id);
    Json generation = json(kGeneration), config = json(kConfig);
    generation[kEos.id] = id_or_list(all);
    config[kEos.id] = token.id;
    set(kGeneration, generation);
    set(kConfig, config);
  }
  for (const char* name : {kTokenizer, kTokenMap}) {
    if (file(name).empty()) continue;
    Json held = json(name);
    if (text_of(held.value(kEos.text, Json())) == token.text) continue;
    held[kEos.text] = token.text;
    set(name, held);
  }
}

void TokenizerSettings::set_chat_template(const std::string& program) {
  files_[kTemplate] = program;
  Json config = json(kTokenizer);
  config["chat_template"] = program;
  set(kTokenizer, config);
}

void TokenizerSettings::complete_generation_ids() {
  const Json config = json(kConfig);
  Json generation = json(kGeneration);
  bool changed = false;
  for (const char* key : {kBos.id, kEos.id, kPad.id}) {
    if (!config.contains(key) || config[key].is_null() || generation.contains(key)) continue;
    generation[key] = config[key];
    changed = true;
  }
  if (changed) set(kGeneration, generation);
}

void TokenizerSettings::add_tokens(const std::vector<SpecialToken>& tokens) {
  if (tokens.empty()) return;
  Json added = json(kAdded), config = json(kTokenizer);
  for (const SpecialToken& token : tokens) {
    added[token.text] = token.id;
    config["added_tokens_decoder"][std::to_string(token.id)] = {
        {"content", token.text}, {"lstrip", false},      {"normalized", false},
        {"rstrip", false},       {"single_word", false}, {"special", true}};
  }
  set(kAdded, added);
  set(kTokenizer, config);
}

namespace {

/// The ids and flags of a GGUF file.
class GgufKeys {
 public:
  explicit GgufKeys(const GgufMetadata& metadata) : metadata_(metadata) {
    tokens_ = metadata.get_array<std::string>(kTokens);
  }

  std::optional<std::int64_t> id(const char* key) const {
    const auto* value = metadata_.get<std::uint32_t>(key);
    if (value == nullptr) return std::nullopt;
    return *value;
  }
  std::string text(std::int64_t id) const {
    if (tokens_ == nullptr || id >= std::ssize(*tokens_)) return "";
    return (*tokens_)[static_cast<std::size_t>(id)];
  }
  std::vector<std::int64_t> ends() const {
    Json all = Json::array();
    if (const auto end = id(kEos.gguf)) all.push_back(*end);
    for (const char* key : kFurtherEnds)
      if (const auto end = id(key)) all.push_back(*end);
    return ids_of(all);
  }
  /// A text that this program wrote there, as an object.
  Json own(const char* key) const {
    const auto* text = metadata_.get<std::string>(key);
    return text == nullptr ? Json::object() : object_of(*text, key);
  }
  /// The settings of generation.
  Json generation() const {
    Json json = own(kOwnGeneration);
    if (!json.empty()) return json;
    for (const auto& [name, key] : kReals)
      if (const auto* value = metadata_.get<float>(key)) json[name] = meant(*value);
    if (const auto* value = metadata_.get<std::int32_t>(kTopK)) json["top_k"] = *value;
    if (!json.empty()) json["do_sample"] = true;
    return json;
  }

 private:
  const GgufMetadata& metadata_;
  const std::vector<std::string>* tokens_;
};

}  // namespace

TokenizerSettings TokenizerSettings::of_gguf(const GgufMetadata& metadata) {
  TokenizerSettings settings;
  const GgufKeys keys(metadata);
  // A list of ends has more of them than llama.cpp has keys for, so that it is kept as it is if
  // the keys agree with it.
  const auto has = [](const Json& held, const char* key, std::int64_t id) {
    const std::vector<std::int64_t> listed = ids_of(held.value(key, Json()));
    return std::find(listed.begin(), listed.end(), id) != listed.end();
  };
  Json config = keys.own(kOwnIds), generation = keys.generation();
  Json tokenizer = keys.own(kOwnTokenizer);
  for (const Role& role : kRoles) {
    const auto id = keys.id(role.gguf);
    if (!id) continue;
    if (!has(config, role.id, *id)) config[role.id] = *id;
    const std::string text = keys.text(*id);
    if (!text.empty() && text_of(tokenizer.value(role.text, Json())) != text)
      tokenizer[role.text] = text;
  }
  const std::vector<std::int64_t> ends = keys.ends();
  if (!ends.empty() && !has(generation, kEos.id, ends.front()))
    generation[kEos.id] = id_or_list(ends);
  for (const Role& role : {kBos, kPad})
    if (config.contains(role.id)) generation[role.id] = config[role.id];
  for (const auto& [name, key] : kFlags)
    if (const auto* value = metadata.get<bool>(key)) tokenizer[name] = *value;
  const auto* model = metadata.get<std::string>("tokenizer.ggml.model");
  if (model != nullptr && *model != "none" && !tokenizer.contains("tokenizer_class")) {
    const bool pieces = *model == "llama";
    tokenizer["tokenizer_class"] = pieces ? "LlamaTokenizer" : "PreTrainedTokenizerFast";
    tokenizer["clean_up_tokenization_spaces"] = false;
    if (pieces) tokenizer["legacy"] = true;
  }
  if (!config.empty()) settings.set(kConfig, config);
  if (!generation.empty()) settings.set(kGeneration, generation);
  if (!tokenizer.empty()) settings.set(kTokenizer, tokenizer);
  if (const auto* program = metadata.get<std::string>(kProgram))
    settings.set_chat_template(*program);
  const std::string other = std::string(kProgram) + ".";
  for (const auto& [key, value] : metadata.pairs())
    if (key.starts_with(other)) settings.other_templates_.push_back(key.substr(other.size()));
  return settings;
}

TokenizerSettings TokenizerSettings::of_vocabulary(const Vocabulary& vocabulary) {
  GgufMetadata metadata;
  const bool pieces = vocabulary.kind() == VocabularyKind::sentencepiece;
  if (!pieces && vocabulary.kind() != VocabularyKind::bpe) return {};
  std::vector<std::string> tokens;
  if (pieces) {
    for (const auto& piece :
         SentencePieceFile::parse(sentencepiece_bytes(vocabulary.to_json()), "the checkpoint")
             .pieces)
      tokens.push_back(piece.text);
  } else {
    for (std::int32_t id = 0; id < vocabulary.size(); ++id)
      tokens.push_back(vocabulary.has(id) ? vocabulary.piece(id) : "");
  }
  metadata.add("tokenizer.ggml.model", std::string(pieces ? "llama" : "gpt2"));
  metadata.add(kTokens, GgufArray(std::move(tokens)));
  const auto start = vocabulary.text_start();
  if (!start.empty()) metadata.add(kBos.gguf, static_cast<std::uint32_t>(start.front()));
  if (const auto end = vocabulary.end_of_text())
    metadata.add(kEos.gguf, static_cast<std::uint32_t>(*end));
  metadata.add("tokenizer.ggml.add_bos_token", !start.empty());
  return of_gguf(metadata);
}

GgufMetadata TokenizerSettings::added_to(const GgufMetadata& metadata) const {
  std::vector<GgufMetadata::Pair> added;
  const Json tokenizer = json(kTokenizer), generation = json(kGeneration);
  const auto* tokens = metadata.get_array<std::string>(kTokens);
  const auto id_of_text = [&](const std::string& text) -> std::optional<std::int64_t> {
    if (text.empty() || tokens == nullptr) return std::nullopt;
    const auto found = std::find(tokens->begin(), tokens->end(), text);
    if (found == tokens->end()) return std::nullopt;
    return found - tokens->begin();
  };
  const auto put = [&](const char* key, std::int64_t id) {
    added.emplace_back(key, static_cast<std::uint32_t>(id));
  };
  std::vector<std::int64_t> ends = this->ends();
  for (const Role& role : kRoles) {
    auto id = id_of_text(text_of(tokenizer.value(role.text, Json())));
    if (!id)
      if (const auto ids = ids_of(id_of(role.id)); !ids.empty()) id = ids.front();
    if (!id) continue;
    put(role.gguf, *id);
    if (role.id != kEos.id) continue;
    std::erase(ends, *id);
    for (std::size_t i = 0; i < std::min(ends.size(), kFurtherEnds.size()); ++i)
      put(kFurtherEnds[i], ends[i]);
  }
  // Byte pairs say themselves, in their own file, which tokens they put around a text.
  const auto* model = metadata.get<std::string>("tokenizer.ggml.model");
  for (const auto& [name, key] : kFlags)
    if (tokenizer.contains(name) && tokenizer[name].is_boolean() && model != nullptr &&
        *model == "llama")
      added.emplace_back(key, tokenizer[name].get<bool>());
  if (const std::string program = chat_template(); !program.empty())
    added.emplace_back(kProgram, program);
  if (generation.value("do_sample", Json()) == true) {
    for (const auto& [name, key] : kReals)
      if (const Json value = generation.value(name, Json()); value.is_number())
        added.emplace_back(key, value.get<float>());
    if (const Json value = generation.value("top_k", Json()); value.is_number_integer())
      added.emplace_back(kTopK, value.get<std::int32_t>());
  }
  Json own = tokenizer;
  for (const char* large : {"chat_template", "added_tokens_decoder"}) own.erase(large);
  const Json ids = object_of(ids_json(), kConfig);
  for (const auto& [key, held] :
       {std::pair(kOwnIds, &ids), {kOwnGeneration, &generation}, {kOwnTokenizer, &own}})
    if (!held->empty()) added.emplace_back(key, dumped(*held));
  GgufMetadata all;
  for (const auto& [key, value] : metadata.pairs()) {
    const auto found = std::find_if(added.begin(), added.end(),
                                    [&k = key](const auto& pair) { return pair.first == k; });
    all.add(key, found == added.end() ? value : found->second);
    if (found != added.end()) added.erase(found);
  }
  for (auto& [key, value] : added) all.add(std::move(key), std::move(value));
  return all;
}

}  // namespace choir
