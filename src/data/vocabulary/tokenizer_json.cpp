#include "src/data/vocabulary/tokenizer_json.hpp"

#include <algorithm>
#include <initializer_list>
#include <set>
#include <tuple>
#include <utility>

#include "choir/core/error.hpp"
#include "src/core/json_value.hpp"
#include "src/data/vocabulary/byte_level_bpe.hpp"
#include "src/data/vocabulary/nfc.hpp"
#include "src/data/vocabulary/utf8.hpp"

namespace choir {
namespace {

bool word_at(const Utf8Scan& scan, std::size_t at) {
  return at < scan.size() && (scan.at(at).classes & kWord);
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (const AddedToken& token : tokens_) {
    CHOIR_CHECK(!token.content.empty(), "an added token without content");
    ++first_byte_[static_cast<unsigned char>(token.content.front()) + 1u];
    longest_ = std::max(longest_, token.content.size());
  }
  for (std::size_t byte = 1; byte < first_byte_.size(); ++byte)
    first_byte_[byte] += first_byte_[byte - 1];
}

// Tokens that share a prefix are neighbours, the shortest first: each further byte of the text
// narrows the range of those that still match.
const AddedToken* AddedTokenFinder::longest_at(std::string_view text, std::size_t at) const {
  const auto byte_at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  auto first = tokens_.begin() + first_byte_[byte_at(at)];
  auto last = tokens_.begin() + first_byte_[byte_at(at) + 1u];
  const AddedToken* longest = nullptr;
  for (std::size_t length = 1; first != last; ++length) {
    while (first != last && first->content.size() == length) longest = &*first++;
    if (first == last || at + length == text.size()) break;
    const unsigned char next = byte_at(at + length);
    const auto byte_of = [&](const AddedToken& token) {
      return static_cast<unsigned char>(token.content[length]);
    };
    first = std::partition_point(first, last, [&](const auto& t) { return byte_of(t) < next; });
    last = std::partition_point(first, last, [&](const auto& t) { return byte_of(t) == next; });
  }
  return longest;
}

std::vector<AddedTokenFinder::Match> AddedTokenFinder::find(std::string_view text,
                                                            bool special) const {
  std::vector<Match> matches;
  if (tokens_.empty()) return matches;
  const Utf8Scan scan(text);
  std::size_t done = 0;  // end of the previous match, including its blanks
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* found = longest_at(text, at);
    if (found == nullptr) {
      ++at;
      continue;
    }
    const AddedToken& token = *found;
    const std::size_t from = at, token_end = at + token.content.size();
    at = token_end;
    if (token.special && !special) continue;
    if (token.single_word && (word_before(text, from) || word_at(scan, token_end))) continue;
    Match match{token.id, from, token_end, from};
    if (token.lstrip)
      while (match.begin > done) {
        const std::size_t previous = previous_character(text, match.begin);
        if ((scan.at(previous).classes & kBlank) == 0) break;
        match.begin = previous;
      }
    if (token.rstrip) match.end = scan.past(token_end, kBlank);
    at = done = match.end;
    matches.push_back(match);
  }
  return matches;
}

namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostIds = std::int64_t{1} << 24;
constexpr std::size_t kMostAround = 1000;    ///< ids around a text in a template
constexpr std::size_t kMostSplitters = 16;   ///< splitters in one tokenizer
constexpr std::size_t kLongestAdded = 4096;  ///< bytes of one added token

/// "" if an entry may have this id; else a message.
std::string id_fault(const Json& value, std::string_view of) {
  if (value.is_number_integer() && value >= 0 && value < kMostIds) return {};
  return fmt::format("gives {} the id {}, which is no number from 0 to {}", of,
                     dumped_safely(value).substr(0, 200), kMostIds - 1);
}

/// The vocabulary and the merges, nearly all of the file, in a few bytes each. Merges may precede
/// the vocabulary, so they are kept as texts until both are complete.
class TokenizerTables : public JsonTables {
 public:
  struct Entry {
    std::size_t begin;  ///< position of the name in names_
    std::uint32_t size;
    std::int32_t id;
  };

  std::vector<std::string> paths() const override { return {"model.vocab", "model.merges"}; }
  void add(std::size_t table, const std::string& key, const Json& value) override {
    if (!fault_.empty()) return;
    if (table == 1) return add_merge(value);
    fault_ = id_fault(value, fmt::format("'{}'", key));
    if (!fault_.empty()) return;
    entries_.push_back(
        {names_.size(), static_cast<std::uint32_t>(key.size()), value.get<std::int32_t>()});
    names_ += key;
  }
  std::optional<std::string> end(std::size_t table) override {
    if (table == 1) return std::nullopt;
    std::sort(entries_.begin(), entries_.end(),
              [&](const Entry& a, const Entry& b) { return name(a) < name(b); });
    const auto twice =
        std::adjacent_find(entries_.begin(), entries_.end(),
                           [&](const Entry& a, const Entry& b) { return name(a) == name(b); });
    if (twice == entries_.end()) return std::nullopt;
    return std::string(name(*twice));
  }

  /// The first malformed member, which matters only if the model has a known type.
  const std::string& fault() const { return fault_; }
  /// Sorted by name.
  const std::vector<Entry>& entries() const { return entries_; }
  std::string_view name(const Entry& entry) const {
    return std::string_view(names_).substr(entry.begin, entry.size);
  }
  std::optional<std::int32_t> id_of(std::string_view wanted) const {
    const auto found =
        std::lower_bound(entries_.begin(), entries_.end(), wanted,
                         [&](const Entry& a, std::string_view b) { return name(a) < b; });
    if (found == entries_.end() || name(*found) != wanted) return std::nullopt;
    return found->id;
  }
  std::size_t merges() const { return merges_.size(); }
  /// The left part, the right part, and both joined.
  std::tuple<std::string_view, std::string_view, std::string_view> merge(std::size_t rank) const {
    const auto [begin, left, right] = merges_[rank];
    const std::string_view both = std::string_view(names_).substr(begin, left + right);
    return {both.substr(0, left), both.substr(left), both};
  }

 private:
  struct Merge {
    std::size_t begin;
    std::uint32_t left, right;
  };

  void add_merge(const Json& merge) {
    std::string_view left, right;
    bool two = false;
    if (merge.is_string()) {
      const std::string_view both = merge.get_ref<const std::string&>();
      const std::size_t blank = both.find(' ');
      two = blank != both.npos && both.find(' ', blank + 1) == both.npos;
      left = both.substr(0, blank);
      if (two) right = both.substr(blank + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      two = true;
      left = merge[0].get_ref<const std::string&>();
      right = merge[1].get_ref<const std::string&>();
    }
    if (!two) {
      fault_ = fmt::format("has merge {} that is not two entries: {}", merges_.size(),
                           dumped_safely(merge).substr(0, 200));
      return;
    }
    merges_.push_back({names_.size(), static_cast<std::uint32_t>(left.size()),
                       static_cast<std::uint32_t>(right.size())});
    names_.append(left).append(right);
  }

  std::string fault_;
  std::string names_;  ///< names of entries and merges, concatenated
  std::vector<Entry> entries_;
  std::vector<Merge> merges_;
};

class TokenizerReader {
 public:
  TokenizerReader(const Json& file, const TokenizerTables& tables, const std::string& source)
      : file_(file), tables_(tables), source_(source) {}

  TokenizerJson read() {
    if (!file_.is_object()) refuse("is no JSON object");
    only(file_, "the file",
         {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
          "post_processor", "decoder", "model"});
    if (const Json& version = field(file_, "version"); !version.is_null() && version != "1.0")
      refuse(fmt::format("has version {}, not \"1.0\"", dumped_safely(version)));
    // Truncation and padding belong to a call: transformers stores those of the last one, and sets
    // both again in every call.
    for (const char* key : {"truncation", "padding"})
      if (const Json& call = field(file_, key); !call.is_null() && !call.is_object())
        refuse(fmt::format("has '{}' that is no object", key));
    if (has_metaspace(field(file_, "pre_tokenizer"))) result_.characters.emplace();
    read_model(object(file_, "model", "the file"));
    read_added(field(file_, "added_tokens"));
    read_normalizer(field(file_, "normalizer"), "normalizer");
    read_pre_tokenizer();
    read_post_processor(field(file_, "post_processor"), "post_processor");
    read_decoder(field(file_, "decoder"), "decoder");
    return std::move(result_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(
        fmt::format("tokenizer '{}' {}", source_, what),
        result_.characters
            ? "supported: BPE with the pre-tokenizer and the decoder Metaspace alone, "
              "with or without NFC; or give the tokenizer.model if there is one"
            : "supported: byte-level BPE as in GPT-2, Llama 3, Qwen and SmolLM, and BPE "
              "with the pre-tokenizer Metaspace");
  }

  static const Json& field(const Json& object, const char* key) {
    static const Json nothing;
    const auto found = object.find(key);
    return found == object.end() ? nothing : *found;
  }
  const Json& object(const Json& parent, const char* key, std::string_view where) const {
    const Json& value = field(parent, key);
    if (!value.is_object()) refuse(fmt::format("has no object '{}' in {}", key, where));
    return value;
  }
  void only(const Json& object, std::string_view where,
            std::initializer_list<std::string_view> known) const {
    for (const auto& [key, value] : object.items())
      if (std::find(known.begin(), known.end(), key) == known.end())
        refuse(fmt::format("has an unknown key '{}' in {}", key, where));
  }
  bool flag(const Json& object, const char* key, std::string_view where, bool absent) const {
    const Json& value = field(object, key);
    if (value.is_null()) return absent;
    if (!value.is_boolean()) refuse(fmt::format("has a '{}' in {} that is no boolean", key, where));
    return value.get<bool>();
  }
  std::string text(const Json& object, const char* key, std::string_view where) const {
    const Json& value = field(object, key);
    if (!value.is_string()) refuse(fmt::format("has no text '{}' in {}", key, where));
    return value.get<std::string>();
  }
  std::int32_t id(const Json& value, std::string_view of) const {
    if (const std::string fault = id_fault(value, of); !fault.empty()) refuse(fault);
    return value.get<std::int32_t>();
  }
  std::string type_of(const Json& value, std::string_view where) const {
    if (!value.is_object()) refuse(fmt::format("has a {} that is no object", where));
    return text(value, "type", where);
  }

  void set_entry(std::int32_t id, std::string bytes, std::string_view name) {
    const auto at = static_cast<std::size_t>(id);
    // Ids may have gaps, but a small file must not cause a large table.
    if (at >= most_ids_)
      refuse(fmt::format("gives '{}' the id {}, although it has {} entries", name, id, entries_));
    if (at >= result_.bytes.size()) result_.bytes.resize(at + 1);
    if (!result_.bytes[at].empty())
      refuse(fmt::format("gives '{}' the id {}, which another entry has", name, id));
    result_.bytes[at] = std::move(bytes);
  }

  void read_model(const Json& model) {
    // The earliest files do not name the type.
    if (const Json& type = field(model, "type"); !type.is_null() && type != "BPE")
      refuse(fmt::format("has a model of type {}, not \"BPE\"", dumped_safely(type)));
    only(model, "the model",
         {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
          "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
    if (!field(model, "dropout").is_null())
      refuse("has 'dropout' in the model: its ids would be random");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const Json& affix = field(model, key); !affix.is_null() && affix != "")
        refuse(fmt::format("has '{}' in the model, which is unknown here", key));
    const bool byte_fallback = flag(model, "byte_fallback", "the model", false);
    if (byte_fallback && !result_.characters)
      refuse("has 'byte_fallback' in the model, which byte-level BPE does not use");
    // These two concern text outside the vocabulary, which a byte-level BPE refuses when it occurs.
    const bool joins_unknown = flag(model, "fuse_unk", "the model", false);
    const Json& unknown = field(model, "unk_token");
    if (!unknown.is_null() && !unknown.is_string())
      refuse("has an 'unk_token' in the model that is no text");
    result_.ignore_merges = flag(model, "ignore_merges", "the model", false);
    if (result_.ignore_merges && result_.characters)
      refuse("has 'ignore_merges' in a model over characters, which is unknown here");
    object(model, "vocab", "the model");
    if (!tables_.fault().empty()) refuse(tables_.fault());
    read_vocabulary(byte_fallback);
    if (result_.characters) {
      result_.characters->joins_unknown = joins_unknown;
      if (unknown.is_string()) result_.characters->unknown = id_of_unknown(unknown);
    }
    if (!field(model, "merges").is_array()) refuse("has no list 'merges' in the model");
    read_merges();
  }

  std::int32_t id_of_unknown(const Json& token) const {
    const auto found = tables_.id_of(token.get_ref<const std::string&>());
    if (!found)
      refuse(fmt::format("has the 'unk_token' {}, which is not in its vocabulary", dumped(token)));
    return *found;
  }

  void read_vocabulary(bool byte_fallback) {
    constexpr std::size_t kGaps = std::size_t{1} << 19;  // a truncated vocabulary keeps its ids
    const Json& added = field(file_, "added_tokens");
    entries_ = tables_.entries().size() + (added.is_array() ? added.size() : 0);
    most_ids_ = 2 * entries_ + kGaps;
    result_.bytes.reserve(tables_.entries().size());
    for (const TokenizerTables::Entry& entry : tables_.entries()) {
      const std::string name(tables_.name(entry));
      if (name.empty()) refuse("has an empty entry in the vocabulary");
      const std::string bytes =
          result_.characters ? with_blanks(name) : characters_as_bytes(name).value_or(name);
      set_entry(entry.id, bytes, name);
      if (const CodePoint c = first_code_point(name);
          result_.characters && static_cast<std::size_t>(c.length) == name.size())
        result_.characters->ids[c.value] = entry.id;
    }
    if (result_.characters) return read_symbols(byte_fallback);
    for (std::size_t byte = 0; byte < 256; ++byte) {
      std::string character;
      append_utf8(character, byte_alphabet()[byte]);
      result_.byte_ids[byte] = tables_.id_of(character).value_or(-1);
    }
  }

  /// Blanks are written as U+2581, and with `byte_fallback` bytes as <0x0A>.
  void read_symbols(bool byte_fallback) {
    CharacterSymbols& symbols = *result_.characters;
    const auto blank = symbols.ids.find(first_code_point(kBlankSign).value);
    symbols.ids.erase(U' ');
    if (blank != symbols.ids.end()) symbols.ids[U' '] = blank->second;
    symbols.byte_ids.fill(-1);
    for (int byte = 0; byte < 256 && byte_fallback; ++byte) {
      const auto id = tables_.id_of(fmt::format("<0x{:02X}>", byte));
      if (!id) continue;
      symbols.byte_ids[static_cast<std::size_t>(byte)] = *id;
      result_.bytes[static_cast<std::size_t>(*id)] = static_cast<char>(byte);
    }
    result_.byte_ids = symbols.byte_ids;
  }

  static std::string with_blanks(std::string_view name) {
    std::string text;
    for (std::size_t at = 0; at < name.size();) {
      const bool blank = name.substr(at).starts_with(kBlankSign);
      text += blank ? ' ' : name[at];
      at += blank ? kBlankSign.size() : 1;
    }
    return text;
  }

  std::int32_t known(std::string_view name, std::size_t merge) const {
    const auto found = tables_.id_of(name);
    if (!found)
      refuse(fmt::format("has merge {} with '{}', which is not in the vocabulary", merge, name));
    return *found;
  }

  void read_merges() {
    std::vector<std::uint64_t> seen;
    seen.reserve(tables_.merges());
    result_.merges.reserve(tables_.merges());
    for (std::size_t rank = 0; rank < tables_.merges(); ++rank) {
      const auto [left, right, both] = tables_.merge(rank);
      const BpeMerge one{known(left, rank), known(right, rank), known(both, rank)};
      result_.merges.push_back(one);
      seen.push_back(static_cast<std::uint64_t>(one.left) << 32 |
                     static_cast<std::uint64_t>(one.right));
    }
    std::sort(seen.begin(), seen.end());
    if (const auto twice = std::adjacent_find(seen.begin(), seen.end()); twice != seen.end())
      refuse(
          fmt::format("has the merge of ids {} and {} twice", *twice >> 32, *twice & 0xFFFFFFFFu));
  }

  void read_added(const Json& all) {
    if (all.is_null()) return;
    if (!all.is_array()) refuse("has 'added_tokens' that are no list");
    std::set<std::string_view> seen;
    result_.added.reserve(all.size());
    for (const Json& one : all) {
      if (!one.is_object()) refuse("has an added token that is no object");
      const std::string content = text(one, "content", "an added token");
      if (content.empty()) refuse("has an added token without content");
      if (content.size() > kLongestAdded)
        refuse(fmt::format("has an added token of {} bytes, more than {}", content.size(),
                           kLongestAdded));
      const std::string where = fmt::format("the added token '{}'", content);
      only(one, where,
           {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      AddedToken token{id(field(one, "id"), where),
                       content,
                       flag(one, "single_word", where, false),
                       flag(one, "lstrip", where, false),
                       flag(one, "rstrip", where, false),
                       flag(one, "normalized", where, true),
                       flag(one, "special", where, false)};
      if (!seen.insert(one["content"].get_ref<const std::string&>()).second)
        refuse(fmt::format("lists {} twice", where));
      if (const auto found = tables_.id_of(content); !found) {
        set_entry(token.id, content, content);
      } else if (*found != token.id) {
        refuse(
            fmt::format("gives {} the id {}, its vocabulary gives it {}", where, token.id, *found));
      } else {
        result_.bytes[static_cast<std::size_t>(token.id)] = content;
      }
      result_.added.push_back(std::move(token));
    }
  }

  void read_normalizer(const Json& normalizer, const std::string& where) {
    if (normalizer.is_null()) return;
    const std::string type = type_of(normalizer, where);
    if (type == "NFC") {
      only(normalizer, where, {"type"});
      if (!have_nfc())
        throw DataError(fmt::format("tokenizer '{}' needs normalised text (NFC), which this build "
                                    "does not support",
                                    source_),
                        "install utf8proc (Debian: libutf8proc-dev) and build again");
      result_.nfc = true;
    } else if (type == "Sequence") {
      only(normalizer, where, {"type", "normalizers"});
      for (const Json& one : list(normalizer, "normalizers", where))
        read_normalizer(one, where + " sequence");
    } else {
      refuse(fmt::format("has the {} '{}', which is unknown here (known: NFC)", where, type));
    }
  }

  const Json& list(const Json& parent, const char* key, const std::string& where) const {
    const Json& all = field(parent, key);
    if (!all.is_array()) refuse(fmt::format("has no list '{}' in the {}", key, where));
    return all;
  }

  static bool has_metaspace(const Json& step) {
    if (!step.is_object()) return false;
    const Json& steps = field(step, "pretokenizers");
    return field(step, "type") == "Metaspace" ||
           (steps.is_array() && std::any_of(steps.begin(), steps.end(), has_metaspace));
  }

  void read_pre_tokenizer() {
    std::vector<Splitter> splitters;
    bool last = false;
    add_pre_tokenizer(field(file_, "pre_tokenizer"), splitters, last);
    if (!last) refuse("has no 'ByteLevel' among its pre-tokenizers");
    if (splitters.size() > kMostSplitters)
      refuse(fmt::format("has {} pre-tokenizers, more than {}", splitters.size(), kMostSplitters));
    result_.pre_tokenizer = PreTokenizer(std::move(splitters));
  }

  /// Sets `last` behind the step that turns text into symbols.
  void add_pre_tokenizer(const Json& step, std::vector<Splitter>& splitters, bool& last) {
    const std::string where = "pre_tokenizer";
    if (step.is_null()) return;
    const std::string type = type_of(step, where);
    if (last)
      refuse(fmt::format("has the pre-tokenizer '{}' behind '{}', which must be the last", type,
                         result_.characters ? "Metaspace" : "ByteLevel"));
    if (type == "Sequence") {
      only(step, where, {"type", "pretokenizers"});
      for (const Json& one : list(step, "pretokenizers", where))
        add_pre_tokenizer(one, splitters, last);
    } else if (type == "Metaspace") {
      if (!splitters.empty()) refuse("has a pre-tokenizer in front of 'Metaspace'");
      read_metaspace(step, splitters);
      last = true;
    } else if (result_.characters) {
      refuse(fmt::format("has the pre-tokenizer '{}' beside 'Metaspace'", type));
    } else if (type == "ByteLevel") {
      only(step, "the pre-tokenizer ByteLevel",
           {"type", "add_prefix_space", "trim_offsets", "use_regex"});
      if (flag(step, "add_prefix_space", where, true)) {
        if (!splitters.empty())
          refuse("adds a blank to each piece of the pre-tokenizers before 'ByteLevel'");
        result_.added_blank = AddedBlank::always;
      }
      if (flag(step, "use_regex", where, true)) splitters.push_back(Splitter::gpt2);
      last = true;
    } else if (type == "Digits") {
      only(step, "the pre-tokenizer Digits", {"type", "individual_digits"});
      splitters.push_back(flag(step, "individual_digits", where, false)
                              ? Splitter::digits
                              : Splitter::contiguous_digits);
    } else if (type == "Split") {
      splitters.push_back(read_split(step));
    } else {
      refuse(fmt::format(
          "has the pre-tokenizer '{}', which is unknown here (known: ByteLevel, Digits, Split)",
          type));
    }
  }

  void read_metaspace(const Json& step, std::vector<Splitter>& splitters) {
    const std::string where = "the pre-tokenizer Metaspace";
    read_replacement(step, where);
    result_.added_blank = added_blank_of(step, where);
    if (flag(step, "split", where, true)) splitters.push_back(Splitter::words);
  }

  void read_replacement(const Json& step, const std::string& where) const {
    only(step, where,
         {"type", "replacement", "str_rep", "prepend_scheme", "add_prefix_space", "split"});
    if (const Json& sign = field(step, "replacement"); sign != kBlankSign)
      refuse(fmt::format("replaces blanks by {} in {}, not by U+2581", dumped_safely(sign), where));
  }

  AddedBlank added_blank_of(const Json& step, const std::string& where) const {
    const Json& scheme = field(step, "prepend_scheme");
    if (scheme.is_null())
      return flag(step, "add_prefix_space", where, true) ? AddedBlank::always : AddedBlank::never;
    if (scheme == "always") return AddedBlank::always;
    if (scheme == "first") return AddedBlank::first;
    if (scheme == "never") return AddedBlank::never;
    refuse(fmt::format("has the prepend_scheme {} in {}", dumped_safely(scheme), where));
  }

  // The known expressions match every character, so there is no text between matches: removing and
  // isolating it have the same effect.
  Splitter read_split(const Json& step) {
    const std::string where = "the pre-tokenizer Split";
    only(step, where, {"type", "pattern", "behavior", "invert"});
    const Json& pattern = object(step, "pattern", where);
    only(pattern, "the pattern of Split", {"Regex", "String"});
    if (pattern.contains("String"))
      refuse("splits at a text, not at a regular expression, in its pre-tokenizer");
    const std::string expression = text(pattern, "Regex", where);
    const std::string behavior = text(step, "behavior", where);
    const bool invert = flag(step, "invert", where, false);
    if (!(behavior == "Isolated" || (behavior == "Removed" && invert)))
      refuse(fmt::format("splits with behavior '{}' (invert {}), which is unknown here", behavior,
                         invert));
    const auto splitter = splitter_of_expression(expression);
    if (!splitter)
      refuse(fmt::format("splits by a regular expression that is unknown here: {}", expression));
    return *splitter;
  }

  void read_post_processor(const Json& step, const std::string& where) {
    if (step.is_null()) return;
    const std::string type = type_of(step, where);
    if (type == "ByteLevel") {  // concerns offsets only
      only(step, where, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
    } else if (type == "Sequence") {
      only(step, where, {"type", "processors"});
      for (const Json& one : list(step, "processors", where)) read_post_processor(one, where);
    } else if (type == "TemplateProcessing") {
      read_template(step);
    } else {
      refuse(
          fmt::format("has the post-processor '{}', which is unknown here (known: ByteLevel, "
                      "TemplateProcessing)",
                      type));
    }
  }

  void read_template(const Json& step) {
    const std::string where = "the template of the post-processor";
    only(step, where, {"type", "single", "pair", "special_tokens"});
    if (!result_.prefix.empty() || !result_.suffix.empty())
      refuse("has two post-processor templates");
    const Json& tokens = object(step, "special_tokens", where);
    bool behind = false;
    for (const Json& part : list(step, "single", where)) {
      if (!part.is_object()) refuse(fmt::format("has a part of {} that is no object", where));
      only(part, where, {"SpecialToken", "Sequence"});
      if (part.contains("Sequence")) {
        if (behind || field(part["Sequence"], "id") != "A")
          refuse(fmt::format("has not exactly one text, A, in {}", where));
        behind = true;
        continue;
      }
      const std::string name = text(object(part, "SpecialToken", where), "id", where);
      const Json& token = object(tokens, name.c_str(), where);
      only(token, where, {"id", "ids", "tokens"});
      for (const Json& value : list(token, "ids", where)) {
        const std::int32_t entry = id(value, fmt::format("'{}' of {}", name, where));
        if (static_cast<std::size_t>(entry) >= result_.bytes.size() ||
            result_.bytes[static_cast<std::size_t>(entry)].empty())
          refuse(fmt::format("has id {} in {}, which no entry has", entry, where));
        if (result_.prefix.size() + result_.suffix.size() == kMostAround)
          refuse(fmt::format("puts more than {} ids around a text", kMostAround));
        (behind ? result_.suffix : result_.prefix).push_back(entry);
      }
    }
    if (!behind) refuse(fmt::format("has no text in {}", where));
  }

  /// Metaspace, in a sequence also with steps that join bytes, as decoding does here anyway.
  void read_metaspace_decoder(const Json& decoder) {
    const std::string where = "decoder";
    std::vector<Json> steps{decoder};
    if (decoder.is_object() && field(decoder, "type") == "Sequence")
      steps = list(decoder, "decoders", where).get<std::vector<Json>>();
    bool known = false;
    for (const Json& step : steps) {
      const std::string type = step.is_null() ? "null" : type_of(step, where);
      if (type == "ByteFallback" || type == "Fuse") continue;
      if (type != "Metaspace" || known)
        refuse(fmt::format("has the decoder '{}', which is unknown here (known: Metaspace)", type));
      read_replacement(step, "the decoder Metaspace");
      result_.drops_first_blank = added_blank_of(step, where) != AddedBlank::never;
      known = true;
    }
    if (!known) refuse("has no 'Metaspace' among its decoders");
  }

  void read_decoder(const Json& decoder, const std::string& where) {
    if (result_.characters) return read_metaspace_decoder(decoder);
    const std::string type = decoder.is_null() ? "null" : type_of(decoder, where);
    if (type == "Sequence") {
      only(decoder, where, {"type", "decoders"});
      const Json& all = list(decoder, "decoders", where);
      if (all.size() != 1) refuse("has not exactly one decoder");
      return read_decoder(all[0], where);
    }
    if (type != "ByteLevel")
      refuse(fmt::format("has the decoder '{}', which is unknown here (known: ByteLevel)", type));
    only(decoder, where, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  }

  const Json& file_;
  const TokenizerTables& tables_;
  const std::string& source_;
  TokenizerJson result_;
  std::size_t entries_ = 0, most_ids_ = 0;
};

/// The two entries of a merge, in either spelling.
std::pair<std::string, std::string> parts_of_merge(const nlohmann::ordered_json& merge) {
  if (merge.is_array()) return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  const std::string both = merge.get<std::string>();
  const std::size_t blank = both.find(' ');
  return {both.substr(0, blank), both.substr(blank + 1)};
}

}  // namespace

std::string tokenizer_json_within(const std::string& text, std::int64_t ids) {
  nlohmann::ordered_json file = parsed_ordered_json(text);
  nlohmann::ordered_json& model = file["model"];
  nlohmann::ordered_json vocabulary = nlohmann::ordered_json::object();
  std::set<std::string> kept;
  auto& entries = vocabulary.get_ref<nlohmann::ordered_json::object_t&>();
  for (const auto& [name, id] : model["vocab"].items())
    if (id.get<std::int64_t>() < ids) {
      entries.emplace_back(name, id);  // a search for the name would make this quadratic
      kept.insert(name);
    }
  model["vocab"] = std::move(vocabulary);
  nlohmann::ordered_json merges = nlohmann::ordered_json::array();
  for (const auto& merge : model["merges"]) {
    const auto [left, right] = parts_of_merge(merge);
    if (kept.contains(left) && kept.contains(right) && kept.contains(left + right))
      merges.push_back(merge);
  }
  model["merges"] = std::move(merges);
  if (file.contains("added_tokens") && file["added_tokens"].is_array()) {
    nlohmann::ordered_json added = nlohmann::ordered_json::array();
    for (const auto& token : file["added_tokens"])
      if (token["id"].get<std::int64_t>() < ids) added.push_back(token);
    file["added_tokens"] = std::move(added);
  }
  return dumped(file);
}

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& source) {
  TokenizerTables tables;
  const Json file = read_json_tables(text, fmt::format("tokenizer '{}'", source), {}, tables);
  return TokenizerReader(file, tables, source).read();
}

}  // namespace choir
