// Vocabularies of bytes and of characters: one id for each code point, in the order of code points.
#include <algorithm>
#include <numeric>
#include "src/core/json_value.hpp"

#include "choir/core/error.hpp"
#include "src/core/text.hpp"
#include "src/data/vocabulary/utf8.hpp"
#include "src/data/vocabulary/vocabulary_model.hpp"

namespace choir {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::uint64_t characters_hash(VocabularyKind kind, const std::vector<char32_t>& entries) {
  std::uint64_t h = fnv1a(name_of(kind));
  for (const char32_t entry : entries)
    for (int shift = 0; shift < 32; shift += 8) {
      const char byte = static_cast<char>(entry >> shift);
      h = fnv1a({&byte, 1}, h);
    }
  return h == 0 ? 1 : h;
}

class Characters : public VocabularyModel {
 public:
  /// `entries`: sorted code points, or 0..255 for bytes.
  Characters(VocabularyKind kind, std::vector<char32_t> entries)
      : kind_(kind), entries_(std::move(entries)), hash_(characters_hash(kind_, entries_)) {
    ids_.assign(entries_.empty() ? 0 : static_cast<std::size_t>(entries_.back()) + 1, -1);
    for (std::size_t i = 0; i < entries_.size(); ++i)
      ids_[static_cast<std::size_t>(entries_[i])] = static_cast<std::int32_t>(i);
  }
  VocabularyKind kind() const override { return kind_; }
  int size() const override { return static_cast<int>(entries_.size()); }
  std::uint64_t hash() const override { return hash_; }

  std::string to_json() const override {
    OrderedJson entries = OrderedJson::array();
    for (std::int32_t id = 0; id < size(); ++id) {
      if (kind_ == VocabularyKind::byte)
        entries.push_back(id);
      else
        entries.push_back(piece(id));
    }
    OrderedJson all;
    all["kind"] = name_of(kind_);
    all["size"] = size();
    all["hash"] = fmt::format("{:016x}", hash_);
    all["entries"] = std::move(entries);
    return dumped(all, 1) + "\n";
  }

  std::size_t encode_part(std::string_view text, bool more_follows, std::string_view source,
                          std::int64_t base, std::vector<std::int32_t>& ids) const override {
    return walk(text, more_follows, ids, [&](const CodePoint& c, std::size_t at) {
      const auto position = base + static_cast<std::int64_t>(at);
      if (c.length == 0) refuse_utf8(source, position);
      throw DataError(
          fmt::format("character {} at byte {} of {} is not in the vocabulary of {}",
                      name_code_point(c.value), position, source, size()),
          "leave it out: this model knows the characters of its training text alone; one "
          "that is trained with data.tokenizer=byte takes any text");
    });
  }
  Vocabulary::Encoded try_encode(std::string_view text) const override {
    Vocabulary::Encoded encoded;
    walk(text, false, encoded.ids, [&](const CodePoint& c, std::size_t at) {
      if (encoded.unknown.empty())
        encoded.unknown =
            c.length > 0 ? name_code_point(c.value) : fmt::format("invalid UTF-8 at byte {}", at);
    });
    return encoded;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      if (id < 0 || id >= size())
        throw DataError(fmt::format("token id {} outside the vocabulary of {}", id, size()));
      const char32_t entry = entries_[static_cast<std::size_t>(id)];
      if (kind_ == VocabularyKind::byte)
        text += static_cast<char>(entry);
      else
        append_utf8(text, entry);
    }
    return text;
  }
  std::string piece(std::int32_t id) const override { return decode({&id, 1}); }

 private:
  /// Appends the ids of `text` and calls refuse(code point, byte) for characters without an id.
  /// Returns the number of bytes used.
  template <class Refuse>
  std::size_t walk(std::string_view text, bool more_follows, std::vector<std::int32_t>& ids,
                   const Refuse& refuse) const {
    if (kind_ == VocabularyKind::byte) {
      for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
      return text.size();
    }
    std::size_t at = 0;
    while (at < text.size()) {
      const CodePoint c = first_code_point(text.substr(at));
      if (c.incomplete && more_follows) break;
      const auto entry = static_cast<std::size_t>(c.value);
      const std::int32_t id = c.length > 0 && entry < ids_.size() ? ids_[entry] : -1;
      if (id < 0)
        refuse(c, at);
      else
        ids.push_back(id);
      at += static_cast<std::size_t>(std::max(c.length, 1));
    }
    return at;
  }

  VocabularyKind kind_;
  std::vector<char32_t> entries_;
  std::vector<std::int32_t> ids_;  // by code point; -1: unknown
  std::uint64_t hash_;
};

}  // namespace

SharedVocabularyModel byte_vocabulary() {
  std::vector<char32_t> all(256);
  std::iota(all.begin(), all.end(), char32_t{0});
  return std::make_shared<Characters>(VocabularyKind::byte, std::move(all));
}

SharedVocabularyModel character_vocabulary(std::vector<char32_t> code_points) {
  std::sort(code_points.begin(), code_points.end());
  code_points.erase(std::unique(code_points.begin(), code_points.end()), code_points.end());
  return std::make_shared<Characters>(VocabularyKind::character, std::move(code_points));
}

SharedVocabularyModel character_vocabulary_from_json(const std::string& json,
                                                     const std::string& source) {
  const auto refuse = [&](const std::string& what) {
    throw DataError(fmt::format("vocabulary '{}' {}", source, what),
                    "prepare the data again with 'choir prepare text'");
  };
  const OrderedJson parsed = read_ordered_json(json, source);
  if (!parsed.is_object()) refuse("is no JSON object");
  for (const char* key : {"kind", "hash", "entries"})
    if (!parsed.contains(key)) refuse(fmt::format("has no '{}'", key));
  const auto& kind = parsed["kind"];
  if (kind != "char" && kind != "byte") refuse(fmt::format("is of unknown kind {}", dumped(kind)));
  SharedVocabularyModel vocabulary;
  if (kind == "byte") {
    vocabulary = byte_vocabulary();
  } else {
    const auto& entries = parsed["entries"];
    if (!entries.is_array()) refuse("has 'entries' that are no list");
    std::vector<char32_t> code_points;
    for (const auto& entry : entries) {
      const std::string text = entry.is_string() ? entry.get<std::string>() : std::string();
      const CodePoint c = text.empty() ? CodePoint{} : first_code_point(text);
      if (c.length == 0 || static_cast<std::size_t>(c.length) != text.size())
        refuse(fmt::format("has an entry that is not one character: {}", dumped(entry)));
      code_points.push_back(c.value);
    }
    const std::size_t listed = code_points.size();
    vocabulary = character_vocabulary(std::move(code_points));
    if (static_cast<std::size_t>(vocabulary->size()) != listed) refuse("lists a character twice");
  }
  if (const std::string hash = fmt::format("{:016x}", vocabulary->hash()); parsed["hash"] != hash)
    refuse(fmt::format("is damaged: its entries hash to {}, it says {}", hash,
                       dumped(parsed["hash"])));
  return vocabulary;
}

}  // namespace choir
