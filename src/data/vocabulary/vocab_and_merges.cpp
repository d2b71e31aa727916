// The first form of tokenizers of transformers, in several files: vocab.json has the entries and
// their ids, merges.txt the merges, and added_tokens.json, special_tokens_map.json and
// tokenizer_config.json what is added to them. They become the tokenizer.json with the same ids.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/data/vocabulary/pre_tokenizers.hpp"
#include "src/data/vocabulary/tokenizer_json.hpp"
#include "src/data/vocabulary/vocabulary_model.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;
using FileJson = nlohmann::ordered_json;

constexpr const char* kSaveAsOne =
    "save it with transformers as one tokenizer.json: "
    "AutoTokenizer.from_pretrained(\"FOLDER\").save_pretrained(\"FOLDER\")";

/// A class of transformers that reads such files.
struct TokenizerClass {
  std::string_view name;
  Splitter splitter;
  bool nfc;
  std::array<std::string_view, 3> model_types;  ///< of config.json, for which it is the default
  /// Special tokens that it has unless the files name others, by their role.
  std::array<std::pair<std::string_view, const char*>, 3> tokens;
};
constexpr std::array kClasses{TokenizerClass{"GPT2Tokenizer",
                                             Splitter::gpt2,
                                             false,
                                             {"gpt2", "", ""},
                                             {{{"bos_token", "<|endoftext|>"},
                                               {"eos_token", "<|endoftext|>"},
                                               {"unk_token", "<|endoftext|>"}}}},
                              TokenizerClass{"Qwen2Tokenizer",
                                             Splitter::qwen2,
                                             true,
                                             {"qwen2", "qwen3", "qwen2_moe"},
                                             {{{"eos_token", "<|endoftext|>"},
                                               {"unk_token", "<|endoftext|>"},
                                               {"pad_token", "<|endoftext|>"}}}}};

constexpr JsonLimits kAnySize{.keys = kAnyNumberOfKeys};

constexpr std::array<std::string_view, 7> kRoles{"bos_token", "eos_token", "unk_token", "sep_token",
                                                 "pad_token", "cls_token", "mask_token"};

class TokenizerFiles {
 public:
  explicit TokenizerFiles(const std::string& vocab)
      : path_(vocab), folder_(fs::path(vocab).parent_path()), vocabulary_(text_of(vocab)) {}

  std::string tokenizer_json() {
    settings_ = json_of("tokenizer_config.json");
    const TokenizerClass& one = class_of_files();
    read_entries();
    add_tokens(one);
    const bool prefix = flag("add_prefix_space");
    FileJson file;
    file["version"] = "1.0";
    file["truncation"] = file["padding"] = nullptr;
    file["added_tokens"] = added_;
    file["normalizer"] = one.nfc ? FileJson{{"type", "NFC"}} : FileJson();
    const bool expression = one.splitter == Splitter::gpt2;
    file["pre_tokenizer"] = byte_level(prefix, expression);
    if (!expression) {
      const FileJson split{{"type", "Split"},
                           {"pattern", {{"Regex", expression_of(one.splitter)}}},
                           {"behavior", "Isolated"},
                           {"invert", false}};
      file["pre_tokenizer"] = {
          {"type", "Sequence"},
          {"pretokenizers", FileJson::array({split, byte_level(prefix, false)})}};
    }
    file["post_processor"] = post_processor();
    file["decoder"] = byte_level(true, true);
    // The entries may be many and are there as text already.
    std::string text = dumped(file);
    text.back() = ',';
    return text +
           R"("model":{"type":"BPE","dropout":null,"unk_token":null,)"
           R"("continuing_subword_prefix":"",)"
           R"("end_of_word_suffix":"","fuse_unk":false,"byte_fallback":false,"vocab":)" +
           std::string(trim(vocabulary_)) + ",\"merges\":" + dumped(merges()) + "}}\n";
  }

 private:
  [[noreturn]] void refuse(const std::string& what, const std::string& cure = kSaveAsOne) const {
    throw DataError(fmt::format("tokenizer '{}' {}", path_, what), cure);
  }

  std::string file(const char* name) const { return (folder_ / name).string(); }
  static std::string text_of(const std::string& path) {
    auto [text, fault] = read_capped_file(path, kMostTokenizerMiB);
    if (!fault.empty()) throw DataError(fmt::format("'{}' {}", path, fault), "copy the file again");
    return std::move(text);
  }
  /// The object of a small file; an empty one if there is no such file.
  FileJson json_of(const char* name) const {
    std::error_code ignored;
    if (!fs::exists(file(name), ignored)) return FileJson::object();
    FileJson json = read_ordered_json(text_of(file(name)), file(name), kAnySize);
    if (!json.is_object()) refuse(fmt::format("has a {} that is no object", name));
    return json;
  }

  static std::string class_name(const FileJson& json) {
    const FileJson name = json.value("tokenizer_class", FileJson());
    std::string text = name.is_string() ? name.get<std::string>() : "";
    if (text.ends_with("Fast")) text.resize(text.size() - 4);
    return text;
  }
  /// The class that tokenizer_config.json or config.json names, or else that of the kind of model;
  /// GPT-2's for files alone.
  const TokenizerClass& class_of_files() const {
    const FileJson config = json_of("config.json");
    std::string name = class_name(settings_);
    if (name.empty()) name = class_name(config);
    const FileJson type = config.value("model_type", FileJson());
    for (const TokenizerClass& one : kClasses) {
      const bool default_class =
          type.is_string() &&
          std::ranges::find(one.model_types, type.get<std::string>()) != one.model_types.end();
      if (name.empty() ? default_class : name == one.name) return one;
    }
    if (!name.empty())
      refuse(
          fmt::format("is of the class {}, of which vocab.json and merges.txt do not say how "
                      "text is split (known: {}, {})",
                      name, kClasses[0].name, kClasses[1].name));
    if (type.is_string())
      refuse(
          fmt::format("has no tokenizer_class in tokenizer_config.json, and a model of type {} "
                      "has no default that is known here",
                      type.get<std::string>()));
    return kClasses[0];
  }

  bool flag(const char* key) const {
    const FileJson value = settings_.value(key, FileJson());
    if (!value.is_null() && !value.is_boolean())
      refuse(fmt::format("has a '{}' in tokenizer_config.json that is no boolean", key));
    return value == true;
  }

  static FileJson byte_level(bool prefix, bool expression) {
    return {{"type", "ByteLevel"},
            {"add_prefix_space", prefix},
            {"trim_offsets", true},
            {"use_regex", expression}};
  }

  void read_entries() {
    const nlohmann::json entries = read_json(vocabulary_, path_, kAnySize);
    for (const auto& [name, id] : entries.items()) {
      if (!id.is_number_integer()) refuse(fmt::format("gives '{}' an id that is no integer", name));
      ids_.emplace(name, id.get<std::int64_t>());
    }
    next_id_ = static_cast<std::int64_t>(ids_.size());
  }

  /// Adds a token as transformers does: an entry keeps its id, another token is numbered behind all
  /// others. `given` is its id by its file.
  void add(const FileJson& token, bool special, std::optional<std::int64_t> given = {}) {
    const bool object = token.is_object();
    const FileJson content = object ? token.value("content", FileJson()) : token;
    if (!content.is_string() || content.get_ref<const std::string&>().empty())
      refuse("has an added token without content");
    const std::string text = content.get<std::string>();
    if (!known_.insert(text).second) return;
    const auto entry = ids_.find(text);
    const std::int64_t id = entry == ids_.end() ? next_id_++ : entry->second;
    if (given && *given != id)
      refuse(fmt::format("gives the added token '{}' the id {}, and transformers numbers it {}",
                         text, *given, id));
    const auto flag_of = [&](const char* key, bool absent) {
      const FileJson value = object ? token.value(key, FileJson()) : FileJson();
      return value.is_boolean() ? value.get<bool>() : absent;
    };
    added_.push_back({{"id", id},
                      {"content", text},
                      {"single_word", flag_of("single_word", false)},
                      {"lstrip", flag_of("lstrip", false)},
                      {"rstrip", flag_of("rstrip", false)},
                      {"normalized", flag_of("normalized", !special)},
                      {"special", special}});
    added_ids_[text] = id;
  }

  static std::string content_of(const FileJson& token) {
    const FileJson content = token.is_object() ? token.value("content", FileJson()) : token;
    return content.is_string() ? content.get<std::string>() : "";
  }
  static bool is_token(const FileJson& value) {
    return value.is_string() || (value.is_object() && value.contains("content"));
  }

  /// The special tokens by their roles, the usual roles first, and further ones without a role.
  std::vector<std::pair<std::string, FileJson>> special_tokens(const TokenizerClass& one) {
    if (!settings_.contains("added_tokens_decoder"))
      settings_.update(json_of("special_tokens_map.json"));
    for (const auto& [role, token] : one.tokens)
      if (const std::string name(role); !settings_.contains(name)) settings_[name] = token;
    std::vector<std::pair<std::string, FileJson>> all;
    for (const std::string_view role : kRoles)
      if (const FileJson token = settings_.value(std::string(role), FileJson()); is_token(token))
        all.emplace_back(role, token);
    for (const auto& [key, value] : settings_.items())
      if (key.ends_with("_token") && is_token(value) &&
          std::ranges::find(kRoles, key) == kRoles.end())
        all.emplace_back(key, value);
    for (const char* key : {"extra_special_tokens", "additional_special_tokens"})
      if (const FileJson list = settings_.value(key, FileJson());
          list.is_structured() && !list.empty()) {
        for (const FileJson& token : list) all.emplace_back("", token);
        break;
      }
    return all;
  }

  void add_tokens(const TokenizerClass& one) {
    const auto special = special_tokens(one);
    std::set<std::string> names;
    for (const auto& [role, token] : special) {
      names.insert(content_of(token));
      roles_.emplace(role, content_of(token));
    }
    std::map<std::int64_t, FileJson> by_id;
    if (const FileJson listed = settings_.value("added_tokens_decoder", FileJson());
        listed.is_object()) {
      for (const auto& [id, token] : listed.items())
        by_id[std::strtoll(id.c_str(), nullptr, 10)] = token;
    } else {
      const FileJson added = json_of("added_tokens.json");
      for (const auto& [text, id] : added.items()) {
        if (!id.is_number_integer())
          refuse(fmt::format("gives '{}' an id that is no integer in added_tokens.json", text));
        by_id[id.get<std::int64_t>()] = text;
      }
    }
    for (const auto& [id, token] : by_id)
      add(token,
          names.contains(content_of(token)) ||
              (token.is_object() && token.value("special", FileJson()) == true),
          id);
    for (const auto& [role, token] : special) add(token, true);
  }

  /// Texts begin and end with tokens if the settings say so.
  FileJson post_processor() const {
    FileJson single = FileJson::array(), pair = FileJson::array(), tokens = FileJson::object();
    const auto put = [&](const char* key, const char* role, int type) {
      const auto token = roles_.find(role);
      if (!flag(key) || token == roles_.end()) return;
      const std::string& text = token->second;
      const FileJson part{{"SpecialToken", {{"id", text}, {"type_id", type}}}};
      if (type == 0) single.push_back(part);
      pair.push_back(part);
      tokens[text] = {{"id", text},
                      {"ids", FileJson::array({added_ids_.at(text)})},
                      {"tokens", FileJson::array({text})}};
    };
    const auto sequence = [](const char* name, int type) {
      return FileJson{{"Sequence", {{"id", name}, {"type_id", type}}}};
    };
    put("add_bos_token", "bos_token", 0);
    single.push_back(sequence("A", 0));
    pair.push_back(sequence("A", 0));
    put("add_eos_token", "eos_token", 0);
    if (tokens.empty()) return byte_level(true, true);
    put("add_bos_token", "bos_token", 1);
    pair.push_back(sequence("B", 1));
    put("add_eos_token", "eos_token", 1);
    return {{"type", "TemplateProcessing"},
            {"single", single},
            {"pair", pair},
            {"special_tokens", tokens}};
  }

  FileJson merges() const {
    std::error_code ignored;
    if (!fs::exists(file("merges.txt"), ignored))
      refuse("lists entries and their ids, but merges.txt, which joins them, is not beside it",
             "copy merges.txt of the same model there, or give a tokenizer.json");
    const std::string text = text_of(file("merges.txt"));
    FileJson all = FileJson::array();
    std::int64_t number = 0;
    for (std::string line : split(text, '\n')) {
      ++number;
      if (line.ends_with('\r')) line.pop_back();
      if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
      const std::size_t blank = line.find(' ');
      if (blank == 0 || blank + 1 >= line.size() || blank != line.rfind(' '))
        refuse(fmt::format("has line {} of merges.txt, which is not two entries", number),
               "copy merges.txt of the same model again");
      all.push_back(FileJson::array({line.substr(0, blank), line.substr(blank + 1)}));
    }
    return all;
  }

  std::string path_;
  fs::path folder_;
  std::string vocabulary_;  ///< the text of vocab.json
  FileJson settings_, added_ = FileJson::array();
  std::map<std::string, std::int64_t> ids_, added_ids_;
  std::set<std::string> known_;  ///< contents of added_
  std::map<std::string, std::string> roles_;
  std::int64_t next_id_ = 0;
};

}  // namespace

bool is_list_of_entries(std::string_view json) {
  constexpr const char* kBlanks = " \t\r\n";
  std::size_t at = json.find_first_not_of(kBlanks);
  if (at == json.npos || json[at] != '{') return false;
  at = json.find_first_not_of(kBlanks, at + 1);
  if (at == json.npos || json[at] != '"') return false;
  for (++at; at < json.size() && json[at] != '"'; ++at) at += json[at] == '\\';
  at = at < json.size() ? json.find_first_not_of(kBlanks, at + 1) : json.npos;
  if (at == json.npos || json[at] != ':') return false;
  at = json.find_first_not_of(kBlanks, at + 1);
  return at != json.npos && json[at] >= '0' && json[at] <= '9';
}

std::string tokenizer_json_of_vocab_and_merges(const std::string& vocab) {
  return TokenizerFiles(vocab).tokenizer_json();
}

}  // namespace choir
