#include "src/models/gpt/foreign/gguf.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "choir/core/error.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/data/vocabulary/pre_tokenizers.hpp"
#include "src/data/vocabulary/sentencepiece.hpp"

namespace choir {
namespace {

using Json = nlohmann::ordered_json;
using PieceKind = SentencePieceFile::Kind;

constexpr const char* kModelKey = "tokenizer.ggml.model";
constexpr const char* kPreKey = "tokenizer.ggml.pre";

/// The tables of a tokenizer. All tables that exist have the same length.
class GgufTables {
 public:
  GgufTables(const GgufMetadata& metadata, const std::string& source)
      : metadata_(metadata), source_(source) {
    tokens_ = metadata.get_array<std::string>("tokenizer.ggml.tokens");
    if (tokens_ == nullptr || tokens_->empty()) refuse("has no tokens");
    types_ = metadata.get_array<std::int32_t>("tokenizer.ggml.token_type");
    if (types_ != nullptr && types_->size() != tokens_->size())
      refuse(fmt::format("has {} tokens, but {} types", tokens_->size(), types_->size()));
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(
        fmt::format("the tokenizer in '{}' {}", source_, what),
        "supported are SentencePiece and byte pairs of GPT-2, Llama 3, Qwen2 and SmolLM");
  }
  std::size_t size() const { return tokens_->size(); }
  const std::string& token(std::size_t id) const { return (*tokens_)[id]; }
  PieceKind kind(std::size_t id) const {
    if (types_ == nullptr) return PieceKind::normal;
    const std::int32_t type = (*types_)[id];
    if (type < 1 || type > 6)
      refuse(fmt::format("gives the token {} the unknown type {}", id, type));
    return static_cast<PieceKind>(type);
  }
  const std::string& text(const char* key) const {
    const auto* value = metadata_.get<std::string>(key);
    if (value == nullptr) refuse(fmt::format("does not have the key '{}'", key));
    return *value;
  }
  /// The text as a JSON string.
  std::string quoted(const std::string& token) const {
    if (!is_utf8(token))
      refuse(fmt::format("has the token or merge {}, which is not UTF-8", shown_as_text(token)));
    return dumped(Json(token));
  }
  bool flag(const char* key, bool absent) const {
    const bool* value = metadata_.get<bool>(key);
    return value == nullptr ? absent : *value;
  }
  /// The id under this key, if the file has it; the token must exist.
  std::optional<std::uint32_t> id(const char* key) const {
    const auto* value = metadata_.get<std::uint32_t>(key);
    if (value == nullptr) return std::nullopt;
    if (*value >= size()) refuse(fmt::format("has {} tokens, but '{}' is {}", size(), key, *value));
    return *value;
  }
  const GgufMetadata& metadata() const { return metadata_; }

 private:
  const GgufMetadata& metadata_;
  const std::string& source_;
  const std::vector<std::string>* tokens_;
  const std::vector<std::int32_t>* types_;
};

/// The rule of splitting text under a name of llama.cpp.
struct PreTokenizerName {
  const char* name;
  Splitter splitter;
  bool digits, nfc, ignores_merges;
};
constexpr PreTokenizerName kPreTokenizers[] = {
    {"gpt-2", Splitter::gpt2, false, false, false},
    {"smollm", Splitter::gpt2, true, false, false},
    {"llama-bpe", Splitter::llama3, false, false, true},
    {"qwen2", Splitter::qwen2, false, true, false},
    {"tekken", Splitter::tekken, false, false, true},
    {"gpt-4o", Splitter::o200k, false, false, true},
};

const PreTokenizerName& pre_tokenizer_of(const GgufTables& tables) {
  const std::string& name = tables.text(kPreKey);
  for (const PreTokenizerName& known : kPreTokenizers)
    if (name == known.name) return known;
  tables.refuse(fmt::format("splits text as '{}', which is not supported", name));
}

Json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json pre_tokenizer_json(const PreTokenizerName& pre) {
  if (pre.splitter == Splitter::gpt2 && !pre.digits) return byte_level(true);
  Json first = {{"type", "Digits"}, {"individual_digits", true}};
  if (!pre.digits)
    first = {{"type", "Split"},
             {"pattern", {{"Regex", expression_of(pre.splitter)}}},
             {"behavior", "Isolated"},
             {"invert", false}};
  return {{"type", "Sequence"},
          {"pretokenizers", Json::array({first, byte_level(pre.splitter == Splitter::gpt2)})}};
}

/// Adds the token `start` before every text and `end` behind it, if they are given.
Json post_processor_json(const GgufTables& tables, std::optional<std::uint32_t> start,
                         std::optional<std::uint32_t> end) {
  if (!start && !end) return nullptr;
  Json single = Json::array(), pair = Json::array(), tokens = Json::object();
  const auto token = [&](std::optional<std::uint32_t> id, int type) {
    if (!id) return;
    const std::string& text = tables.token(*id);
    const Json one{{"SpecialToken", {{"id", text}, {"type_id", type}}}};
    if (type == 0) single.push_back(one);
    pair.push_back(one);
    tokens[text] = {{"id", text}, {"ids", {*id}}, {"tokens", {text}}};
  };
  token(start, 0);
  single.push_back(Json{{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  pair.push_back(single.back());
  token(end, 0);
  token(start, 1);
  pair.push_back(Json{{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
  token(end, 1);
  return {{"type", "TemplateProcessing"},
          {"single", std::move(single)},
          {"pair", std::move(pair)},
          {"special_tokens", std::move(tokens)}};
}

std::string tokenizer_json_of_gguf(const GgufTables& tables) {
  const PreTokenizerName& pre = pre_tokenizer_of(tables);
  const auto* merges = tables.metadata().get_array<std::string>("tokenizer.ggml.merges");
  if (merges == nullptr) tables.refuse("has no merges");
  // Written directly as text: a JSON document of it would need many times the memory.
  std::vector<std::string_view> names;
  std::string vocabulary;
  Json added = Json::array();
  for (std::size_t id = 0; id < tables.size(); ++id) {
    const PieceKind kind = tables.kind(id);
    const std::string& token = tables.token(id);
    if (kind == PieceKind::unused) continue;
    if (kind == PieceKind::byte) tables.refuse(fmt::format("has the byte '{}' as a token", token));
    // Added tokens are entries of the vocabulary, too: the library `tokenizers` gives others new
    // ids behind it, whatever their "id" is.
    names.push_back(token);
    vocabulary += fmt::format("{}{}:{}", vocabulary.empty() ? "" : ",", tables.quoted(token), id);
    if (kind == PieceKind::normal) continue;
    added.push_back({{"id", id},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", kind != PieceKind::user_defined}});
  }
  Json file = {{"version", "1.0"},          {"truncation", nullptr},
               {"padding", nullptr},        {"added_tokens", std::move(added)},
               {"normalizer", nullptr},     {"pre_tokenizer", pre_tokenizer_json(pre)},
               {"post_processor", nullptr}, {"decoder", byte_level(true)}};
  if (pre.nfc) file["normalizer"] = {{"type", "NFC"}};
  auto start = tables.id("tokenizer.ggml.bos_token_id");
  auto end = tables.id("tokenizer.ggml.eos_token_id");
  if (!tables.flag("tokenizer.ggml.add_bos_token", pre.splitter == Splitter::llama3)) start = {};
  if (!tables.flag("tokenizer.ggml.add_eos_token", false)) end = {};
  file["post_processor"] = post_processor_json(tables, start, end);
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end())
    tables.refuse(fmt::format("has the token '{}' twice", *twice));
  std::string text = dumped(file);
  text.pop_back();
  text += fmt::format(R"(,"model":{{"type":"BPE","ignore_merges":{},"vocab":{{{}}},"merges":[)",
                      pre.ignores_merges, vocabulary);
  for (const std::string& merge : *merges)
    text += (&merge == merges->data() ? "" : ",") + tables.quoted(merge);
  return text + "]}}";
}

std::string sentencepiece_of_gguf(const GgufTables& tables) {
  const auto* scores = tables.metadata().get_array<float>("tokenizer.ggml.scores");
  if (scores == nullptr || scores->size() != tables.size())
    tables.refuse(fmt::format("has {} tokens, but {} scores", tables.size(),
                              scores == nullptr ? 0 : scores->size()));
  SentencePieceFile file{.pieces = {},
                         .model = SentencePieceFile::Model::bpe,
                         .blank_in_front = tables.flag("tokenizer.ggml.add_space_prefix", true),
                         .squeezes_blanks = false,
                         .charsmap = ""};
  for (std::size_t id = 0; id < tables.size(); ++id) {
    file.pieces.push_back({tables.token(id), (*scores)[id], tables.kind(id)});
    file.byte_fallback = file.byte_fallback || tables.kind(id) == PieceKind::byte;
  }
  return sentencepiece_json(file.bytes(), tables.flag("tokenizer.ggml.add_bos_token", true));
}

}  // namespace

std::string vocabulary_of_gguf(const GgufMetadata& metadata, const std::string& source) {
  const GgufTables tables(metadata, source);
  const std::string& kind = tables.text(kModelKey);
  if (kind == "gpt2") return tokenizer_json_of_gguf(tables);
  if (kind == "llama") return sentencepiece_of_gguf(tables);
  tables.refuse(fmt::format("is of the kind '{}', which is not supported", kind));
}

GgufMetadata with_control_tokens(const GgufMetadata& tokenizer,
                                 const std::vector<SpecialToken>& tokens) {
  if (tokens.empty()) return tokenizer;
  GgufMetadata all;
  for (const auto& [key, value] : tokenizer.pairs()) {
    GgufValue changed = value;
    auto* array = std::get_if<GgufArray>(&changed);
    const auto put = [&](auto& list, const auto& value_of) {
      for (const SpecialToken& token : tokens)
        if (token.id < std::ssize(list)) list[static_cast<std::size_t>(token.id)] = value_of(token);
    };
    if (array != nullptr && key == "tokenizer.ggml.tokens")
      if (auto* texts = std::get_if<std::vector<std::string>>(array))
        put(*texts, [](const SpecialToken& token) { return token.text; });
    if (array != nullptr && key == "tokenizer.ggml.token_type")
      if (auto* types = std::get_if<std::vector<std::int32_t>>(array))
        put(*types, [](const SpecialToken&) { return static_cast<int>(PieceKind::control); });
    all.add(key, std::move(changed));
  }
  return all;
}

GgufMetadata gguf_of_sentencepiece(const Vocabulary& vocabulary, std::int64_t vocab_size) {
  const SentencePieceFile file =
      SentencePieceFile::parse(sentencepiece_bytes(vocabulary.to_json()), "the checkpoint");
  if (file.model != SentencePieceFile::Model::bpe || !file.charsmap.empty() || file.squeezes_blanks)
    throw DeckError(
        "llama.cpp supports only SentencePiece models of byte pairs without normalisation of text, "
        "and this model is another one",
        "--format hf keeps its tokenizer.model");
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<std::int32_t> types;
  for (const SentencePieceFile::Piece& piece : file.pieces) {
    tokens.push_back(piece.text);
    scores.push_back(piece.score);
    types.push_back(static_cast<std::int32_t>(piece.kind));
  }
  while (std::ssize(tokens) < vocab_size) {
    tokens.push_back(fmt::format("[PAD{}]", tokens.size()));
    scores.push_back(0);
    types.push_back(static_cast<std::int32_t>(PieceKind::unused));
  }
  GgufMetadata m;
  m.add(kModelKey, std::string("llama"));
  m.add(kPreKey, std::string("default"));
  m.add("tokenizer.ggml.tokens", GgufArray(std::move(tokens)));
  m.add("tokenizer.ggml.scores", GgufArray(std::move(scores)));
  m.add("tokenizer.ggml.token_type", GgufArray(std::move(types)));
  m.add("tokenizer.ggml.add_eos_token", false);
  m.add("tokenizer.ggml.add_space_prefix", file.blank_in_front);
  return m;
}

namespace {

constexpr std::string_view kTokenizer = "tokenizer.";
// Types of tokens in llama.cpp.
constexpr std::int32_t kNormal = 1, kUnused = 5, kByte = 6;

std::string character_token(const std::string& piece) {
  return piece == " " ? "\u2581" : piece;
}

}  // namespace

bool has_tokenizer(const GgufMetadata& metadata) {
  const auto* model = metadata.get<std::string>("tokenizer.ggml.model");
  return !tokenizer_of(metadata).pairs().empty() && !(model != nullptr && *model == "none");
}

GgufMetadata tokenizer_of(const GgufMetadata& metadata) {
  GgufMetadata tokenizer;
  for (const auto& [key, value] : metadata.pairs())
    if (key.starts_with(kTokenizer)) tokenizer.add(key, value);
  return tokenizer;
}

namespace {

/// llama.cpp's name of the rule by which the tokenizer splits text.
std::string pre_tokenizer_name(const nlohmann::json& file) {
  std::vector<nlohmann::json> steps{file.value("pre_tokenizer", nlohmann::json())};
  if (steps[0].is_object() && steps[0].contains("pretokenizers"))
    steps = steps[0]["pretokenizers"].get<std::vector<nlohmann::json>>();
  bool digits = false;
  std::string expression;
  for (const auto& step : steps) {
    const std::string type = step.is_object() ? step.value("type", "") : "";
    if (type == "Digits") digits = step.value("individual_digits", false);
    if (type == "ByteLevel" && step.value("add_prefix_space", true))
      throw DeckError(
          "llama.cpp does not add a blank in front of texts as this tokenizer does "
          "(add_prefix_space)",
          "--format hf keeps its tokenizer.json");
    if (type == "Metaspace")
      throw DeckError(
          "llama.cpp has byte pairs over characters (Metaspace) only as SentencePiece models, and "
          "none has the ids of this tokenizer",
          "--format hf keeps its tokenizer.json");
    if (type == "ByteLevel" && step.value("use_regex", true))
      expression = expression_of(Splitter::gpt2);
    if (type == "Split" && step.contains("pattern") && step["pattern"].contains("Regex"))
      expression = step["pattern"]["Regex"].get<std::string>();
  }
  const auto splitter = splitter_of_expression(expression);
  if (splitter == Splitter::gpt2) return digits ? "smollm" : "gpt-2";
  if (splitter == Splitter::llama3 && !digits) return "llama-bpe";
  if (splitter == Splitter::qwen2 && !digits) return "qwen2";
  if (splitter == Splitter::tekken && !digits) return "tekken";
  if (splitter == Splitter::o200k && !digits) return "gpt-4o";
  throw DeckError("llama.cpp does not support how this tokenizer splits text",
                  "--format hf keeps its tokenizer.json");
}

/// True if the tokenizer puts a token behind every text.
bool ends_texts(const nlohmann::json& step) {
  if (!step.is_object()) return false;
  if (step.contains("processors"))
    return std::any_of(step["processors"].begin(), step["processors"].end(), ends_texts);
  if (!step.contains("single") || step["single"].empty()) return false;
  return step["single"].back().contains("SpecialToken");
}

GgufMetadata tokenizer_of_bpe(const Vocabulary& vocabulary, std::int64_t vocab_size) {
  constexpr std::int32_t kControl = 3, kUserDefined = 4;
  const nlohmann::json file = json_unless_broken(vocabulary.to_json());
  const auto& model = file["model"];
  const auto rows = static_cast<std::size_t>(std::max<std::int64_t>(vocab_size, vocabulary.size()));
  std::vector<std::string> tokens(rows), merges;
  std::vector<std::int32_t> types(rows, kUnused);
  for (std::size_t id = 0; id < rows; ++id) tokens[id] = fmt::format("[PAD{}]", id);
  const auto put = [&](std::size_t id, const std::string& token, std::int32_t type) {
    tokens.at(id) = token;
    types.at(id) = type;
  };
  for (const auto& [token, id] : model["vocab"].items()) put(id.get<std::size_t>(), token, kNormal);
  if (file.contains("added_tokens"))
    for (const auto& added : file["added_tokens"])
      put(added["id"].get<std::size_t>(), added["content"].get<std::string>(),
          added.value("special", false) ? kControl : kUserDefined);
  for (const auto& merge : model["merges"])
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  if (merges.empty())
    throw DeckError("llama.cpp cannot read a tokenizer without merges",
                    "--format hf keeps its tokenizer.json");
  GgufMetadata m;
  m.add("tokenizer.ggml.model", std::string("gpt2"));
  m.add("tokenizer.ggml.pre", pre_tokenizer_name(file));
  m.add("tokenizer.ggml.tokens", GgufArray(std::move(tokens)));
  m.add("tokenizer.ggml.token_type", GgufArray(std::move(types)));
  m.add("tokenizer.ggml.merges", GgufArray(std::move(merges)));
  if (ends_texts(file.value("post_processor", nlohmann::json())))
    m.add("tokenizer.ggml.add_eos_token", true);
  return m;
}

/// Adds the tokens that begin and end a text.
void add_text_ends(const Vocabulary& vocabulary, GgufMetadata& m) {
  const auto start = vocabulary.text_start();
  if (!start.empty())
    m.add("tokenizer.ggml.bos_token_id", static_cast<std::uint32_t>(start.front()));
  if (const auto end = vocabulary.end_of_text())
    m.add("tokenizer.ggml.eos_token_id", static_cast<std::uint32_t>(*end));
  m.add("tokenizer.ggml.add_bos_token", !start.empty());
}

}  // namespace

GgufMetadata tokenizer_of_vocabulary(const std::string& json, std::int64_t vocab_size) {
  GgufMetadata m;
  if (json.empty()) {
    m.add("tokenizer.ggml.model", std::string("none"));
    return m;
  }
  const Vocabulary vocabulary = Vocabulary::from_json(json, "the checkpoint");
  if (vocabulary.kind() == VocabularyKind::bpe ||
      vocabulary.kind() == VocabularyKind::sentencepiece) {
    m = vocabulary.kind() == VocabularyKind::bpe ? tokenizer_of_bpe(vocabulary, vocab_size)
                                                 : gguf_of_sentencepiece(vocabulary, vocab_size);
    add_text_ends(vocabulary, m);
    return m;
  }
  const bool bytes = vocabulary.kind() == VocabularyKind::byte;
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;
  for (std::int32_t id = 0; id < vocab_size; ++id) {
    const bool known = id < vocabulary.size();
    tokens.push_back(!known  ? fmt::format("[PAD{}]", id)
                     : bytes ? fmt::format("<0x{:02X}>", id)
                             : character_token(vocabulary.piece(id)));
    types.push_back(!known ? kUnused : bytes ? kByte : kNormal);
  }
  m.add("tokenizer.ggml.model", std::string("llama"));
  m.add("tokenizer.ggml.pre", std::string("default"));
  m.add("tokenizer.ggml.scores", GgufArray(std::vector<float>(tokens.size(), 0.0f)));
  m.add("tokenizer.ggml.tokens", GgufArray(std::move(tokens)));
  m.add("tokenizer.ggml.token_type", GgufArray(std::move(types)));
  m.add("tokenizer.ggml.add_bos_token", false);
  m.add("tokenizer.ggml.add_eos_token", false);
  m.add("tokenizer.ggml.add_space_prefix", false);
  return m;
}

}  // namespace choir
