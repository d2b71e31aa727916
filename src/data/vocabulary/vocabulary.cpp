#include "src/data/vocabulary/vocabulary.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/hints.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/data/vocabulary/rank_files.hpp"
#include "src/data/vocabulary/sentencepiece.hpp"
#include "src/data/vocabulary/tokenizer_json.hpp"
#include "src/data/vocabulary/utf8.hpp"
#include "src/data/vocabulary/vocabulary_model.hpp"

namespace choir {
namespace {

/// The characters of the sentences; the `most` frequent ones if there are more (0: no limit).
std::vector<char32_t> count_characters(const std::vector<std::string>& sentences, int most) {
  std::map<char32_t, std::int64_t> counts;
  for (const std::string& sentence : sentences) {
    for (std::size_t at = 0; at < sentence.size();) {
      const CodePoint c = first_code_point(std::string_view(sentence).substr(at));
      if (c.length == 0) refuse_utf8("'" + sentence + "'", static_cast<std::int64_t>(at));
      ++counts[c.value];
      at += static_cast<std::size_t>(c.length);
    }
  }
  std::vector<std::pair<char32_t, std::int64_t>> order(counts.begin(), counts.end());
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  if (most > 0 && std::ssize(order) > most) order.resize(static_cast<std::size_t>(most));
  std::vector<char32_t> kept;
  for (const auto& [c, count] : order) kept.push_back(c);
  return kept;
}

/// A tokenizer.json whose words are single characters, as exports of such vocabularies have it.
/// Nothing for other models, and for another order of the ids.
std::optional<std::vector<char32_t>> characters_of_words(const nlohmann::json& file) {
  const nlohmann::json model = file.value("model", nlohmann::json());
  if (!model.is_object() || model.value("type", nlohmann::json()) != "WordLevel") return {};
  const nlohmann::json vocab = model.value("vocab", nlohmann::json::object());
  std::vector<std::pair<std::int64_t, char32_t>> order;
  for (const auto& [word, id] : vocab.items()) {
    const CodePoint c = word.empty() ? CodePoint{} : first_code_point(word);
    if (c.length == 0 || static_cast<std::size_t>(c.length) != word.size() ||
        !id.is_number_integer())
      return {};
    order.emplace_back(id.get<std::int64_t>(), c.value);
  }
  std::ranges::sort(order);
  std::vector<char32_t> characters;
  for (const auto& [id, character] : order) {
    if (id != std::ssize(characters) || (id > 0 && character <= characters.back())) return {};
    characters.push_back(character);
  }
  if (characters.empty()) return {};
  return characters;
}

/// The file of a tokenizer in a folder; "" if it has none.
std::string tokenizer_in(const std::string& folder) {
  std::error_code ignored;
  for (const char* name :
       {"tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer/tokenizer.json"})
    if (const auto file = std::filesystem::path(folder) / name;
        std::filesystem::is_regular_file(file, ignored))
      return file.string();
  return {};
}

/// The model of a tokenizer.json. One that was made from a SentencePiece model becomes this model
/// again.
SharedVocabularyModel model_of_tokenizer_json(const std::string& json, const std::string& source) {
  const std::string pieces =
      is_metaspace_bpe(json) ? sentencepiece_of_metaspace_bpe(json, source) : "";
  return pieces.empty() ? bpe_vocabulary(json, source)
                        : sentencepiece_from_json(parsed_json(pieces), source);
}

}  // namespace

bool is_tokenizer_json(std::string_view json) {
  const std::size_t first = json.find('"');
  return first != std::string_view::npos && !json.substr(first).starts_with("\"kind\"") &&
         json.find("\"merges\"") != std::string_view::npos && !is_list_of_entries(json);
}

VocabularyKind vocabulary_kind_of(std::string_view name) {
  for (const VocabularyKind kind : {VocabularyKind::character, VocabularyKind::byte})
    if (name == name_of(kind)) return kind;
  for (const VocabularyKind kind : {VocabularyKind::character, VocabularyKind::byte})
    if (name.starts_with(name_of(kind)))
      throw DeckError(fmt::format("unknown tokenizer '{}'", name),
                      fmt::format("did you mean '{}'?", name_of(kind)));
  throw DeckError(fmt::format("unknown tokenizer '{}'", name),
                  advice_on_path(std::string(name),
                                 "use char or byte, or the file of a tokenizer (tokenizer.json, "
                                 "tokenizer.model); `choir prepare text FILES --out FOLDER "
                                 "--tokenizer bpe --vocab-size 8192` trains one"));
}

std::string_view name_of(VocabularyKind kind) {
  switch (kind) {
    case VocabularyKind::character:
      return "char";
    case VocabularyKind::byte:
      return "byte";
    case VocabularyKind::sentencepiece:
      return "sentencepiece";
    case VocabularyKind::bpe:
      return "bpe";
  }
  return "?";
}

Vocabulary Vocabulary::bytes() {
  return Vocabulary(byte_vocabulary());
}

Vocabulary Vocabulary::characters(std::vector<char32_t> code_points) {
  return Vocabulary(character_vocabulary(std::move(code_points)));
}

Vocabulary Vocabulary::load(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    if (const std::string file = tokenizer_in(path); !file.empty()) return load(file);
    throw DataError(fmt::format("'{}' is a folder, not the file of a tokenizer", path),
                    advice_on_run_as_tokenizer(path));
  }
  std::string bytes = read_whole_file(path, kMostTokenizerMiB);
  if (bytes.empty())
    throw DataError(fmt::format("tokenizer '{}' is empty", path),
                    "run 'choir prepare tokenizer' again");
  // No SentencePiece model begins with a brace: its first byte is the tag of the first field.
  if (is_list_of_entries(bytes))
    return Vocabulary(bpe_vocabulary(tokenizer_json_of_vocab_and_merges(path), path));
  if (is_tekken_file(bytes))
    return Vocabulary(bpe_vocabulary(tokenizer_json_of_tekken(bytes, path), path));
  if (bytes.front() == '{') return from_json(bytes, path);
  if (is_tiktoken_file(bytes))
    return Vocabulary(bpe_vocabulary(tokenizer_json_of_tiktoken(bytes, path), path));
  return Vocabulary(open_sentencepiece(std::move(bytes), path));
}

Vocabulary Vocabulary::load_beside_tokens(const std::string& path) {
  if (!std::ifstream(path, std::ios::binary))
    throw DataError(fmt::format("cannot open the vocabulary '{}'", path),
                    "'choir prepare text' writes it beside the token files");
  const auto [text, fault] = read_capped_file(path, kMostTokenizerMiB);
  if (!fault.empty())
    throw DataError(fmt::format("vocabulary '{}' {}", path, fault),
                    "prepare the data again with 'choir prepare text'");
  return from_json(text, path);
}

Vocabulary Vocabulary::from_json(const std::string& json, const std::string& source) {
  if (is_tokenizer_json(json)) return Vocabulary(model_of_tokenizer_json(json, source));
  const auto refuse = [&](const std::string& what) {
    throw DataError(fmt::format("tokenizer '{}' is {}", source, what),
                    "'choir prepare tokenizer' writes it");
  };
  const auto parsed = read_json(json, source);
  if (!parsed.is_object()) refuse("no JSON object");
  // The tokenizer may be wrapped together with a chat template or with the layout of dialogues.
  if ((parsed.contains("chat_template") || parsed.contains("dialogues")) &&
      parsed.contains("tokenizer") && parsed["tokenizer"].is_string() &&
      !parsed["tokenizer"].get_ref<const std::string&>().empty())
    return from_json(parsed["tokenizer"].get<std::string>(), source);
  if (parsed.contains("kind") && parsed["kind"] == name_of(VocabularyKind::sentencepiece))
    return Vocabulary(sentencepiece_from_json(parsed, source));
  if (auto words = characters_of_words(parsed)) return characters(*std::move(words));
  if (!parsed.contains("kind") && parsed.contains("model") && parsed["model"].is_object())
    refuse(fmt::format("of the type {}, which is not supported",
                       dumped(parsed["model"].value("type", nlohmann::json("unknown")))));
  return Vocabulary(character_vocabulary_from_json(json, source));
}

std::string Vocabulary::to_json() const {
  return model_->to_json();
}

void Vocabulary::save(const std::string& path) const {
  const bool own_form = path.ends_with(".model");
  CHOIR_CHECK(!own_form || !model_->sentencepiece_model().empty(),
              "'{}': only SentencePiece models can be saved as .model", path);
  write_whole_file(path, own_form ? model_->sentencepiece_model() : to_json());
}

Vocabulary Vocabulary::within(std::int64_t ids) const {
  const std::string source = fmt::format("the first {} entries", ids);
  if (kind() == VocabularyKind::bpe)
    return from_json(tokenizer_json_within(to_json(), ids), source);
  if (kind() != VocabularyKind::sentencepiece)
    throw DataError(
        fmt::format("a vocabulary of {} {}s cannot be cut to {}", size(), name_of(kind()), ids));
  const nlohmann::json whole = parsed_json(to_json());
  SentencePieceFile file = SentencePieceFile::parse(model_->sentencepiece_model(), source);
  file.pieces.resize(std::min(file.pieces.size(), static_cast<std::size_t>(ids)));
  return from_json(sentencepiece_json(file.bytes(), whole.value("text_start", true),
                                      whole.value("shares_blank", false),
                                      whole.value("blank_at_start_only", false)),
                   source);
}

VocabularyKind Vocabulary::kind() const {
  return model_->kind();
}
int Vocabulary::size() const {
  return model_->size();
}
std::uint64_t Vocabulary::hash() const {
  return model_->hash();
}

std::vector<std::int32_t> Vocabulary::encode(std::string_view text, std::string_view source,
                                             std::int64_t base) const {
  std::vector<std::int32_t> ids;
  encode_part(text, false, source, base, ids);
  return ids;
}
std::size_t Vocabulary::encode_part(std::string_view text, bool more_follows,
                                    std::string_view source, std::int64_t base,
                                    std::vector<std::int32_t>& ids) const {
  return model_->encode_part(text, more_follows, source, base, ids);
}
Vocabulary::Encoded Vocabulary::try_encode(std::string_view text) const {
  return model_->try_encode(text);
}
std::string Vocabulary::decode(std::span<const std::int32_t> ids) const {
  return model_->decode(ids);
}
std::string Vocabulary::piece(std::int32_t id) const {
  return model_->piece(id);
}
bool Vocabulary::has(std::int32_t id) const {
  return model_->has(id);
}
std::vector<std::int32_t> Vocabulary::text_start() const {
  return model_->text_start();
}
std::optional<std::int32_t> Vocabulary::control(std::string_view piece) const {
  return model_->control(piece);
}

std::optional<std::int32_t> Vocabulary::end_of_text() const {
  return model_->end_of_text();
}

Vocabulary train_vocabulary(const VocabularyTraining& training,
                            const std::vector<std::string>& sentences) {
  const std::vector<std::string> types{"char", "bpe", "unigram"};
  if (std::find(types.begin(), types.end(), training.type) == types.end())
    throw DeckError(fmt::format("unknown type of tokenizer '{}'", training.type),
                    "char, bpe or unigram");
  if (training.vocab_size < 0 || (training.type != "char" && training.vocab_size == 0))
    throw DeckError(fmt::format("a vocabulary of {}", training.vocab_size),
                    fmt::format("--vocab-size is needed for {}, for example 128", training.type));
  const bool empty = std::all_of(sentences.begin(), sentences.end(),
                                 [](const std::string& s) { return trim(s).empty(); });
  if (empty) throw DataError("there is no text to train a tokenizer on");
  if (training.type == "char")
    return Vocabulary::characters(count_characters(sentences, training.vocab_size));
  return Vocabulary(train_sentencepiece(training, sentences));
}

}  // namespace choir
