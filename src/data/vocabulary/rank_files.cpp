#include "src/data/vocabulary/rank_files.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "choir/core/error.hpp"
#include "src/core/json_value.hpp"
#include "src/core/output.hpp"
#include "src/core/text.hpp"
#include "src/data/vocabulary/byte_level_bpe.hpp"
#include "src/data/vocabulary/pre_tokenizers.hpp"
#include "src/data/vocabulary/vocabulary_model.hpp"

namespace choir {
namespace {

using RankJson = nlohmann::ordered_json;

struct Special {
  std::int64_t id = 0;
  std::string text;
};

struct RankTable {
  std::vector<std::string> tokens;  ///< bytes by rank
  std::int64_t first_id = 0;        ///< the id of rank 0
  std::string expression;
  bool nfc = false;
  std::vector<Special> specials;
  std::string start;  ///< the control token in front of every text; "" for none
};

[[noreturn]] void refuse_ranks(const std::string& source, const std::string& what,
                               const std::string& cure) {
  throw DataError(fmt::format("tokenizer '{}' {}", source, what), cure);
}

/// All ways to join two tokens to a third, in the order of its rank.
RankJson merges_of(const RankTable& table, const std::vector<std::string>& characters,
                   const std::unordered_map<std::string_view, std::size_t>& ranks) {
  RankJson merges = RankJson::array();
  std::vector<std::pair<std::size_t, std::size_t>> ways;
  for (const std::string& token : table.tokens) {
    ways.clear();
    for (std::size_t at = 1; at < token.size(); ++at) {
      const std::string_view whole = token;
      const auto left = ranks.find(whole.substr(0, at)), right = ranks.find(whole.substr(at));
      if (left != ranks.end() && right != ranks.end())
        ways.emplace_back(left->second, right->second);
    }
    std::sort(ways.begin(), ways.end());
    for (const auto& [left, right] : ways)
      merges.push_back(RankJson::array({characters[left], characters[right]}));
  }
  return merges;
}

std::string tokenizer_json_of(const RankTable& table, const std::string& source) {
  std::unordered_map<std::string_view, std::size_t> ranks;
  for (std::size_t rank = 0; rank < table.tokens.size(); ++rank) {
    const auto [held, fresh] = ranks.emplace(table.tokens[rank], rank);
    if (!fresh)
      refuse_ranks(source, fmt::format("has the same bytes at ranks {} and {}", held->second, rank),
                   "the file is damaged");
  }
  for (int byte = 0; byte < 256; ++byte)
    if (const char c = static_cast<char>(byte); !ranks.contains(std::string_view(&c, 1)))
      refuse_ranks(source, fmt::format("has no token for the byte 0x{:02X}", byte),
                   "the file is damaged");
  RankJson file, added = RankJson::array();
  std::vector<std::string> characters;
  for (const std::string& token : table.tokens) characters.push_back(bytes_as_characters(token));
  for (const Special& special : table.specials)
    added.push_back({{"id", special.id},
                     {"content", special.text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  const RankJson byte_level{{"type", "ByteLevel"},
                            {"add_prefix_space", false},
                            {"trim_offsets", true},
                            {"use_regex", false}};
  file["version"] = "1.0";
  file["truncation"] = nullptr;
  file["padding"] = nullptr;
  file["added_tokens"] = std::move(added);
  file["normalizer"] = table.nfc ? RankJson{{"type", "NFC"}} : RankJson();
  file["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       RankJson::array({RankJson{{"type", "Split"},
                                 {"pattern", RankJson{{"Regex", table.expression}}},
                                 {"behavior", "Isolated"},
                                 {"invert", false}},
                        byte_level})}};
  file["post_processor"] = byte_level;
  for (const Special& special : table.specials) {
    if (table.start.empty() || special.text != table.start) continue;
    const RankJson start{{"SpecialToken", RankJson{{"id", special.text}, {"type_id", 0}}}};
    const auto sequence = [](const char* name, int type) {
      return RankJson{{"Sequence", RankJson{{"id", name}, {"type_id", type}}}};
    };
    file["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single", RankJson::array({start, sequence("A", 0)})},
        {"pair", RankJson::array({start, sequence("A", 0), sequence("B", 1)})},
        {"special_tokens",
         RankJson{{special.text, RankJson{{"id", special.text},
                                          {"ids", RankJson::array({special.id})},
                                          {"tokens", RankJson::array({special.text})}}}}}};
  }
  file["decoder"] = byte_level;
  // An ordered object of JSON searches all its keys for every new one.
  std::string model =
      R"("model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,)"
      R"("end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":true,)"
      R"("vocab":{)";
  for (std::size_t rank = 0; rank < characters.size(); ++rank)
    model += fmt::format("{}{}:{}", rank == 0 ? "" : ",", dumped(RankJson(characters[rank])),
                         table.first_id + static_cast<std::int64_t>(rank));
  model += "},\"merges\":" + dumped(merges_of(table, characters, ranks)) + "}";
  std::string all = dumped(file);
  all.back() = ',';
  return all + model + "}\n";
}

std::vector<std::string> tiktoken_tokens(std::string_view text, const std::string& source) {
  std::vector<std::string> tokens;
  std::int64_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.empty()) continue;
    const std::size_t blank = line.find(' ');
    std::string bytes;
    std::int64_t rank = -1;
    const bool whole =
        blank != line.npos && from_base64(line.substr(0, blank), bytes) && !bytes.empty() &&
        std::from_chars(line.data() + blank + 1, line.data() + line.size(), rank).ptr ==
            line.data() + line.size();
    if (!whole)
      refuse_ranks(source, fmt::format("has line {}, which is no base64 and rank", number),
                   "the file is damaged");
    if (rank != std::ssize(tokens))
      refuse_ranks(
          source,
          fmt::format("has rank {} in line {}, where {} is expected", rank, number, tokens.size()),
          "only vocabularies without gaps are supported; save the tokenizer with "
          "transformers and give its tokenizer.json");
    tokens.push_back(std::move(bytes));
  }
  return tokens;
}

/// `count` control tokens "PREFIX0|>", "PREFIX1|>" ... from `id` on.
void add_numbered(std::vector<Special>& specials, std::int64_t id, const std::string& prefix,
                  int first, int count) {
  for (int i = 0; i < count; ++i)
    specials.push_back({id + i, fmt::format("{}{}|>", prefix, first + i)});
}

struct Published {
  std::size_t ranks;
  const char* name;
  Splitter splitter;
};
constexpr std::array kPublished{
    Published{50256, "gpt2", Splitter::gpt2}, Published{100256, "cl100k_base", Splitter::llama3},
    Published{128000, "Llama 3", Splitter::llama3}, Published{151643, "Qwen", Splitter::qwen2},
    Published{199998, "o200k_base", Splitter::o200k}};

void add_published_specials(RankTable& table) {
  std::vector<Special>& all = table.specials;
  switch (table.tokens.size()) {
    case 50256:
      all = {{50256, "<|endoftext|>"}};
      return;
    case 100256:
      all = {{100257, "<|endoftext|>"},
             {100258, "<|fim_prefix|>"},
             {100259, "<|fim_middle|>"},
             {100260, "<|fim_suffix|>"},
             {100276, "<|endofprompt|>"}};
      return;
    case 199998:
      all = {{199999, "<|endoftext|>"}, {200018, "<|endofprompt|>"}};
      return;
    case 151643:
      all = {{151643, "<|endoftext|>"}, {151644, "<|im_start|>"}, {151645, "<|im_end|>"}};
      add_numbered(all, 151646, "<|extra_", 0, 205);
      table.nfc = true;
      return;
    default:
      all = {{128000, "<|begin_of_text|>"}, {128001, "<|end_of_text|>"}};
      add_numbered(all, 128002, "<|reserved_special_token_", 0, 4);
      all.push_back({128006, "<|start_header_id|>"});
      all.push_back({128007, "<|end_header_id|>"});
      add_numbered(all, 128008, "<|reserved_special_token_", 4, 1);
      all.push_back({128009, "<|eot_id|>"});
      add_numbered(all, 128010, "<|reserved_special_token_", 5, 246);
      table.start = "<|begin_of_text|>";
  }
}

/// Names of the first control tokens of files that do not list them (version v3).
constexpr std::array kTekkenSpecials{"<unk>",
                                     "<s>",
                                     "</s>",
                                     "[INST]",
                                     "[/INST]",
                                     "[AVAILABLE_TOOLS]",
                                     "[/AVAILABLE_TOOLS]",
                                     "[TOOL_RESULTS]",
                                     "[/TOOL_RESULTS]",
                                     "[TOOL_CALLS]",
                                     "[IMG]",
                                     "<pad>",
                                     "[IMG_BREAK]",
                                     "[IMG_END]",
                                     "[PREFIX]",
                                     "[MIDDLE]",
                                     "[SUFFIX]",
                                     "[SYSTEM_PROMPT]",
                                     "[/SYSTEM_PROMPT]",
                                     "[TOOL_CONTENT]"};

class TekkenReader {
 public:
  TekkenReader(const nlohmann::json& file, const std::string& source)
      : file_(file), source_(source) {}

  RankTable read() {
    const nlohmann::json& config = member(file_, "config");
    const std::int64_t all = count(config, "default_vocab_size");
    const std::int64_t specials = count(config, "default_num_special_tokens");
    const nlohmann::json& pattern = member(config, "pattern");
    if (!pattern.is_string()) refuse("has no text 'pattern' in 'config'");
    table_.expression = pattern.get<std::string>();
    if (!splitter_of_expression(table_.expression))
      refuse(fmt::format("splits text by an expression that is unknown here: {}",
                         printable(table_.expression)));
    if (specials <= 0 || all <= specials + 255)
      refuse(fmt::format("has {} ids, {} of them control tokens", all, specials));
    table_.first_id = specials;
    read_tokens(all - specials);
    read_specials(specials);
    table_.start = "<s>";
    return std::move(table_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    refuse_ranks(source_, what,
                 "a tekken.json of Mistral has config, vocab and special_tokens; or give a "
                 "tokenizer.json");
  }
  const nlohmann::json& member(const nlohmann::json& object, const char* key) const {
    if (!object.is_object() || !object.contains(key)) refuse(fmt::format("has no '{}'", key));
    return object[key];
  }
  std::int64_t count(const nlohmann::json& object, const char* key) const {
    const nlohmann::json& value = member(object, key);
    constexpr std::int64_t kMost = 1 << 24;
    if (!value.is_number_integer() || value.get<std::int64_t>() < 0 ||
        value.get<std::int64_t>() > kMost)
      refuse(fmt::format("has no sensible '{}'", key));
    return value.get<std::int64_t>();
  }
  void read_tokens(std::int64_t wanted) {
    const nlohmann::json& list = member(file_, "vocab");
    if (!list.is_array() || std::ssize(list) < wanted)
      refuse(fmt::format("has {} tokens in 'vocab', and needs {}", list.size(), wanted));
    for (std::int64_t rank = 0; rank < wanted; ++rank) {
      const nlohmann::json& one = list[static_cast<std::size_t>(rank)];
      std::string bytes;
      if (count(one, "rank") != rank)
        refuse(fmt::format("has rank {} at place {} of 'vocab'", count(one, "rank"), rank));
      if (const nlohmann::json& text = member(one, "token_bytes");
          !text.is_string() || !from_base64(text.get_ref<const std::string&>(), bytes) ||
          bytes.empty())
        refuse(fmt::format("has no base64 'token_bytes' at rank {}", rank));
      table_.tokens.push_back(std::move(bytes));
    }
  }
  void read_specials(std::int64_t wanted) {
    for (std::int64_t id = 0; id < wanted; ++id)
      table_.specials.push_back({id, fmt::format("<SPECIAL_{}>", id)});
    if (!file_.contains("special_tokens") || file_["special_tokens"].is_null()) {
      for (std::size_t id = 0;
           id < std::min<std::size_t>(kTekkenSpecials.size(), table_.specials.size()); ++id)
        table_.specials[id].text = kTekkenSpecials[id];
      return;
    }
    const nlohmann::json& list = file_["special_tokens"];
    if (!list.is_array()) refuse("has 'special_tokens' that are no list");
    for (const nlohmann::json& one : list) {
      const std::int64_t id = count(one, "rank");
      const nlohmann::json& text = member(one, "token_str");
      if (id >= wanted || !text.is_string() || text.get_ref<const std::string&>().empty())
        refuse(fmt::format("has the control token {} without a text or outside of {}", id, wanted));
      table_.specials[static_cast<std::size_t>(id)].text = text.get<std::string>();
    }
  }

  const nlohmann::json& file_;
  const std::string& source_;
  RankTable table_;
};

}  // namespace

bool is_tiktoken_file(std::string_view text) {
  const std::string_view line = text.substr(0, std::min(text.find('\n'), std::size_t{200}));
  const std::size_t blank = line.find(' ');
  std::string bytes;
  if (blank == line.npos || !from_base64(line.substr(0, blank), bytes) || bytes.empty())
    return false;
  const std::string_view rank = trim(line.substr(blank + 1));
  return !rank.empty() && rank.find_first_not_of("0123456789") == rank.npos;
}

bool is_tekken_file(std::string_view text) {
  return text.starts_with('{') && text.find("\"default_num_special_tokens\"") != text.npos &&
         text.find("\"token_bytes\"") != text.npos;
}

std::string tokenizer_json_of_tiktoken(std::string_view text, const std::string& source) {
  RankTable table;
  table.tokens = tiktoken_tokens(text, source);
  const auto known = std::find_if(kPublished.begin(), kPublished.end(), [&](const Published& one) {
    return one.ranks == table.tokens.size();
  });
  if (known == kPublished.end()) {
    std::string all;
    for (const Published& one : kPublished)
      all += fmt::format("{}{} ({})", all.empty() ? "" : ", ", one.name, one.ranks);
    refuse_ranks(source,
                 fmt::format("is a list of {} ranks, which says neither how text is split nor "
                             "what the control tokens are; known: {}",
                             table.tokens.size(), all),
                 "save the tokenizer with transformers and give its tokenizer.json");
  }
  table.expression = expression_of(known->splitter);
  add_published_specials(table);
  return tokenizer_json_of(table, source);
}

std::string tokenizer_json_of_tekken(const std::string& text, const std::string& source) {
  JsonLimits limits;
  limits.keys = kAnyNumberOfKeys;
  const nlohmann::json file = read_json(text, fmt::format("tokenizer '{}'", source), limits);
  return tokenizer_json_of(TekkenReader(file, source).read(), source);
}

}  // namespace choir
