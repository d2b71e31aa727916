#include "choir/data/text/tokenizer.hpp"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "choir/core/capped_text.hpp"
#include "choir/core/error.hpp"
#include "choir/core/json_extent.hpp"
#include "choir/data/utf8.hpp"
#include "src/data/posix_file.hpp"

namespace choir {
namespace {

using Json = nlohmann::ordered_json;

std::uint64_t hash_of(TokenizerKind kind, const std::vector<char32_t>& entries) {
  std::uint64_t h = 0xcbf29ce484222325ull;
  const auto mix = [&](unsigned char byte) { h = (h ^ byte) * 0x100000001b3ull; };
  for (const char c : name_of(kind)) mix(static_cast<unsigned char>(c));
  for (const char32_t entry : entries)
    for (int shift = 0; shift < 32; shift += 8) mix(static_cast<unsigned char>(entry >> shift));
  return h == 0 ? 1 : h;
}

[[noreturn]] void refuse_vocabulary(const std::string& source, const std::string& what) {
  throw DataError(fmt::format("vocabulary '{}' {}", source, what),
                  "prepare the data again with 'choir prepare text'");
}

Tokenizer characters_from(const Json& entries, const std::string& source) {
  if (!entries.is_array()) refuse_vocabulary(source, "has 'entries' that are no list");
  std::vector<char32_t> code_points;
  for (const auto& entry : entries) {
    const std::string text = entry.is_string() ? entry.get<std::string>() : std::string();
    const CodePoint c = text.empty() ? CodePoint{} : first_code_point(text);
    if (c.length == 0 || static_cast<std::size_t>(c.length) != text.size())
      refuse_vocabulary(source,
                        fmt::format("has an entry that is not one character: {}", entry.dump()));
    code_points.push_back(c.value);
  }
  const std::size_t listed = code_points.size();
  Tokenizer tokenizer = Tokenizer::characters(std::move(code_points));
  if (static_cast<std::size_t>(tokenizer.vocab_size()) != listed)
    refuse_vocabulary(source, "lists a character twice");
  return tokenizer;
}

}  // namespace

void refuse_utf8(std::string_view source, std::int64_t byte) {
  throw DataError(fmt::format("{} is not UTF-8 at byte {}", source, byte),
                  "convert it, for example with: iconv -f latin1 -t utf-8");
}

TokenizerKind tokenizer_kind_of(std::string_view name) {
  if (name == "char") return TokenizerKind::character;
  if (name == "byte") return TokenizerKind::byte;
  throw DeckError(fmt::format("unknown tokenizer '{}'", name), "char or byte");
}

std::string_view name_of(TokenizerKind kind) {
  return kind == TokenizerKind::character ? "char" : "byte";
}

Tokenizer::Tokenizer(TokenizerKind kind, std::vector<char32_t> entries)
    : kind_(kind), entries_(std::move(entries)), hash_(hash_of(kind_, entries_)) {
  ids_.assign(entries_.empty() ? 0 : static_cast<std::size_t>(entries_.back()) + 1, -1);
  for (std::size_t i = 0; i < entries_.size(); ++i)
    ids_[static_cast<std::size_t>(entries_[i])] = static_cast<std::int32_t>(i);
}

Tokenizer Tokenizer::bytes() {
  std::vector<char32_t> all(256);
  std::iota(all.begin(), all.end(), char32_t{0});
  return {TokenizerKind::byte, std::move(all)};
}

Tokenizer Tokenizer::characters(std::vector<char32_t> code_points) {
  std::sort(code_points.begin(), code_points.end());
  code_points.erase(std::unique(code_points.begin(), code_points.end()), code_points.end());
  return {TokenizerKind::character, std::move(code_points)};
}

Tokenizer Tokenizer::load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw DataError(fmt::format("cannot open the vocabulary '{}'", path),
                    "it lies beside the token files; 'choir prepare text' writes it");
  constexpr std::size_t kMostMiB = 256;  // all characters of Unicode need a tenth of it
  const auto [text, fault] = read_capped(file, kMostMiB);
  if (!fault.empty()) refuse_vocabulary(path, fault);
  return from_json(text, path);
}

Tokenizer Tokenizer::from_json(const std::string& json, const std::string& source) {
  if (const std::string excess = json_excess(json); !excess.empty())
    refuse_vocabulary(source, "is " + excess);
  const Json parsed = Json::parse(json, nullptr, false);
  if (!parsed.is_object()) refuse_vocabulary(source, "is not valid JSON");
  for (const char* key : {"kind", "hash", "entries"})
    if (!parsed.contains(key)) refuse_vocabulary(source, fmt::format("has no '{}'", key));
  const auto& kind = parsed["kind"];
  if (kind != "char" && kind != "byte")
    refuse_vocabulary(source, fmt::format("is of unknown kind {}", kind.dump()));
  Tokenizer tokenizer =
      kind == "byte" ? Tokenizer::bytes() : characters_from(parsed["entries"], source);
  if (const std::string hash = fmt::format("{:016x}", tokenizer.hash()); parsed["hash"] != hash)
    refuse_vocabulary(source, fmt::format("is damaged: its entries hash to {}, it says {}", hash,
                                          parsed["hash"].dump()));
  return tokenizer;
}

std::string Tokenizer::to_json() const {
  Json entries = Json::array();
  for (const char32_t entry : entries_) {
    if (kind_ == TokenizerKind::byte) {
      entries.push_back(static_cast<int>(entry));
      continue;
    }
    std::string text;
    append_utf8(text, entry);
    entries.push_back(text);
  }
  Json all;
  all["kind"] = name_of(kind_);
  all["size"] = vocab_size();
  all["hash"] = fmt::format("{:016x}", hash_);
  all["entries"] = std::move(entries);
  return all.dump(1) + "\n";
}

void Tokenizer::save(const std::string& path) const {
  const std::string text = to_json();
  PosixFile file = PosixFile::for_writing(path);
  file.write_at(text.data(), text.size(), 0);
  file.sync();
}

std::int32_t Tokenizer::id_of(char32_t code_point) const {
  const auto at = static_cast<std::size_t>(code_point);
  return at < ids_.size() ? ids_[at] : -1;
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, std::string_view source,
                                            std::int64_t base) const {
  std::vector<std::int32_t> ids;
  encode_part(text, false, source, base, ids);
  return ids;
}

std::size_t Tokenizer::encode_part(std::string_view text, bool more_follows,
                                   std::string_view source, std::int64_t base,
                                   std::vector<std::int32_t>& ids) const {
  if (kind_ == TokenizerKind::byte) {
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return text.size();
  }
  std::size_t at = 0;
  while (at < text.size()) {
    const CodePoint c = first_code_point(text.substr(at));
    const auto position = base + static_cast<std::int64_t>(at);
    if (c.incomplete && more_follows) break;
    if (c.length == 0) refuse_utf8(source, position);
    const std::int32_t id = id_of(c.value);
    if (id < 0)
      throw DataError(fmt::format("character {} at byte {} of {} is not in the vocabulary of {}",
                                  name_code_point(c.value), position, source, vocab_size()),
                      "use text of the kind the vocabulary was made from, or the byte tokenizer");
    ids.push_back(id);
    at += static_cast<std::size_t>(c.length);
  }
  return at;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= vocab_size())
      throw DataError(fmt::format("token id {} outside the vocabulary of {}", id, vocab_size()));
    const char32_t entry = entries_[static_cast<std::size_t>(id)];
    if (kind_ == TokenizerKind::byte) {
      text += static_cast<char>(entry);
    } else {
      append_utf8(text, entry);
    }
  }
  return text;
}

}  // namespace choir
