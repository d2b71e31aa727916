#include "choir/data/text/text_units.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "choir/core/error.hpp"
#include "choir/core/json_extent.hpp"
#include "choir/core/text.hpp"
#include "choir/data/utf8.hpp"
#include "src/data/text/subword_model.hpp"
#include "src/data/whole_file.hpp"

namespace choir {
namespace {

class Characters : public UnitModel {
 public:
  explicit Characters(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}
  std::string_view kind() const override { return name_of(tokenizer_.kind()); }
  int vocab_size() const override { return tokenizer_.vocab_size(); }
  std::uint64_t hash() const override { return tokenizer_.hash(); }
  std::string to_json() const override { return tokenizer_.to_json(); }
  std::string sentencepiece_model() const override { return ""; }

  TextUnits::Encoded encode(std::string_view text) const override {
    TextUnits::Encoded encoded;
    if (tokenizer_.kind() == TokenizerKind::byte) {
      encoded.ids = tokenizer_.encode(text);
      return encoded;
    }
    const auto& entries = tokenizer_.entries();
    for (std::size_t at = 0; at < text.size();) {
      const CodePoint c = first_code_point(text.substr(at));
      const auto found = std::lower_bound(entries.begin(), entries.end(), c.value);
      const bool known = c.length > 0 && found != entries.end() && *found == c.value;
      if (!known && encoded.unknown.empty())
        encoded.unknown = c.length > 0 ? name_code_point(c.value)
                                       : fmt::format("what is not UTF-8 at byte {}", at);
      if (known) encoded.ids.push_back(static_cast<std::int32_t>(found - entries.begin()));
      at += static_cast<std::size_t>(std::max(c.length, 1));
    }
    return encoded;
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    return tokenizer_.decode(ids);
  }
  std::string piece(std::int32_t id) const override { return tokenizer_.decode({&id, 1}); }

 private:
  Tokenizer tokenizer_;
};

/// The characters of the sentences; of more than `most` (0: no limit) the commonest.
Tokenizer count_characters(const std::vector<std::string>& sentences, int most) {
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
  return Tokenizer::characters(std::move(kept));
}

}  // namespace

TextUnits TextUnits::characters(Tokenizer tokenizer) {
  return TextUnits(std::make_shared<Characters>(std::move(tokenizer)));
}

TextUnits TextUnits::load(const std::string& path) {
  std::string bytes = read_whole_file(path);
  if (bytes.empty())
    throw DataError(fmt::format("tokenizer '{}' is empty", path),
                    "'choir prepare tokenizer' again");
  // No SentencePiece model begins with a brace: the first byte is the tag of its first field.
  if (bytes.front() == '{') return from_json(bytes, path);
  return TextUnits(open_subword_model(std::move(bytes), path));
}

TextUnits TextUnits::from_json(const std::string& json, const std::string& source) {
  const auto refuse = [&](const std::string& what) {
    throw DataError(fmt::format("tokenizer '{}' is {}", source, what),
                    "'choir prepare tokenizer' writes it");
  };
  if (const std::string excess = json_excess(json); !excess.empty()) refuse(excess);
  const auto parsed = nlohmann::json::parse(json, nullptr, false);
  if (!parsed.is_object()) refuse("not valid JSON");
  if (parsed.contains("kind") && parsed["kind"] == kSubwordKind)
    return TextUnits(subword_model_from_json(parsed, source));
  return characters(Tokenizer::from_json(json, source));
}

std::string TextUnits::to_json() const {
  return model_->to_json();
}

void TextUnits::save(const std::string& path) const {
  const bool own_form = path.ends_with(".model");
  CHOIR_CHECK(!own_form || !model_->sentencepiece_model().empty(),
              "'{}': only SentencePiece models have the form of its tools", path);
  write_whole_file(path, own_form ? model_->sentencepiece_model() : to_json());
}

std::string_view TextUnits::kind() const {
  return model_->kind();
}
int TextUnits::vocab_size() const {
  return model_->vocab_size();
}
std::uint64_t TextUnits::hash() const {
  return model_->hash();
}
TextUnits::Encoded TextUnits::encode(std::string_view text) const {
  return model_->encode(text);
}
std::string TextUnits::decode(std::span<const std::int32_t> ids) const {
  return model_->decode(ids);
}
std::string TextUnits::piece(std::int32_t id) const {
  return model_->piece(id);
}

TextUnits train_text_units(const UnitTraining& training,
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
  if (empty) throw DataError("there is no text to make a tokenizer of");
  if (training.type == "char")
    return TextUnits::characters(count_characters(sentences, training.vocab_size));
  return TextUnits(train_subword_model(training, sentences));
}

}  // namespace choir
