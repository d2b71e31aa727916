#include "src/data/vocabulary/tokenizer_json.hpp"

#include <algorithm>
#include <initializer_list>

#include "choir/core/error.hpp"
#include "choir/core/json_extent.hpp"
#include "choir/core/json_value.hpp"
#include "src/data/vocabulary/byte_alphabet.hpp"
#include "src/data/vocabulary/nfc.hpp"
#include "src/data/vocabulary/utf8.hpp"

namespace choir {
namespace {

using Json = nlohmann::json;
using Ids = std::unordered_map<std::string_view, std::int32_t>;

constexpr std::int64_t kMostIds = std::int64_t{1} << 24;
constexpr int kDeepest = 64;

class TokenizerReader {
 public:
  TokenizerReader(const Json& file, const std::string& source) : file_(file), source_(source) {}

  TokenizerJson read() {
    if (!file_.is_object()) refuse("is no JSON object");
    only(file_, "the file",
         {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
          "post_processor", "decoder", "model"});
    if (const Json& version = field(file_, "version"); !version.is_null() && version != "1.0")
      refuse(fmt::format("has version {}, not \"1.0\"", dumped_safely(version)));
    for (const char* key : {"truncation", "padding"})
      if (!field(file_, key).is_null())
        refuse(fmt::format("has '{}', which would change the ids of a text", key));
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
    throw DataError(fmt::format("tokenizer '{}' {}", source_, what),
                    "byte-level BPE is read as GPT-2, Llama 3, Qwen and SmolLM have it");
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
    if (!value.is_number_integer() || value < 0 || value >= kMostIds)
      refuse(fmt::format("gives {} the id {}, which is no number from 0 to {}", of,
                         dumped_safely(value), kMostIds - 1));
    return value.get<std::int32_t>();
  }
  std::string type_of(const Json& value, std::string_view where) const {
    if (!value.is_object()) refuse(fmt::format("has a {} that is no object", where));
    return text(value, "type", where);
  }

  void set_entry(std::int32_t id, std::string bytes, std::string_view name) {
    const auto at = static_cast<std::size_t>(id);
    if (at >= result_.bytes.size()) result_.bytes.resize(at + 1);
    if (!result_.bytes[at].empty())
      refuse(fmt::format("gives '{}' the id {}, which another entry has", name, id));
    result_.bytes[at] = std::move(bytes);
  }

  void read_model(const Json& model) {
    // Files of the first years do not name the type.
    if (const Json& type = field(model, "type"); !type.is_null() && type != "BPE")
      refuse(fmt::format("has a model of type {}, not \"BPE\"", dumped_safely(type)));
    only(model, "the model",
         {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
          "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
    if (!field(model, "dropout").is_null())
      refuse("has 'dropout' in the model: its ids would be random");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const Json& affix = field(model, key); !affix.is_null() && affix != "")
        refuse(fmt::format("has '{}' in the model, which byte-level BPE does not use", key));
    if (flag(model, "byte_fallback", "the model", false))
      refuse("has 'byte_fallback' in the model, which byte-level BPE does not use");
    // These two are for what the vocabulary lacks, which is refused when it is met in a text.
    flag(model, "fuse_unk", "the model", false);
    if (const Json& unknown = field(model, "unk_token"); !unknown.is_null() && !unknown.is_string())
      refuse("has an 'unk_token' in the model that is no text");
    result_.ignore_merges = flag(model, "ignore_merges", "the model", false);
    read_vocabulary(object(model, "vocab", "the model"));
    read_merges(field(model, "merges"));
  }

  void read_vocabulary(const Json& vocabulary) {
    ids_.reserve(vocabulary.size());
    result_.bytes.reserve(vocabulary.size());
    for (const auto& [name, value] : vocabulary.items()) {
      if (name.empty()) refuse("has an empty entry in the vocabulary");
      const std::int32_t entry = id(value, fmt::format("'{}'", name));
      set_entry(entry, characters_as_bytes(name).value_or(name), name);
      ids_.emplace(name, entry);
    }
    for (std::size_t byte = 0; byte < 256; ++byte) {
      std::string character;
      append_utf8(character, byte_alphabet()[byte]);
      const auto found = ids_.find(character);
      result_.byte_ids[byte] = found == ids_.end() ? -1 : found->second;
    }
  }

  std::int32_t known(std::string_view name, std::size_t merge) const {
    const auto found = ids_.find(name);
    if (found == ids_.end())
      refuse(fmt::format("has merge {} with '{}', which is not in the vocabulary", merge, name));
    return found->second;
  }

  void read_merges(const Json& merges) {
    if (!merges.is_array()) refuse("has no list 'merges' in the model");
    std::vector<std::uint64_t> seen;
    for (std::size_t rank = 0; rank < merges.size(); ++rank) {
      const Json& merge = merges[rank];
      std::string left, right;
      if (merge.is_string()) {
        const auto& both = merge.get_ref<const std::string&>();
        const std::size_t blank = both.find(' ');
        if (blank == std::string::npos || both.find(' ', blank + 1) != std::string::npos)
          refuse(
              fmt::format("has merge {} that is not two entries: {}", rank, dumped_safely(merge)));
        left = both.substr(0, blank);
        right = both.substr(blank + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else {
        refuse(fmt::format("has merge {} that is not two entries: {}", rank, dumped_safely(merge)));
      }
      const BpeMerge one{known(left, rank), known(right, rank), known(left + right, rank)};
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
    for (const Json& one : all) {
      if (!one.is_object()) refuse("has an added token that is no object");
      const std::string content = text(one, "content", "an added token");
      const std::string where = fmt::format("the added token '{}'", content);
      if (content.empty()) refuse("has an added token without content");
      only(one, where,
           {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      AddedToken token{id(field(one, "id"), where),
                       content,
                       flag(one, "single_word", where, false),
                       flag(one, "lstrip", where, false),
                       flag(one, "rstrip", where, false),
                       flag(one, "normalized", where, true),
                       flag(one, "special", where, false)};
      for (const AddedToken& other : result_.added)
        if (other.content == content) refuse(fmt::format("has {} twice", where));
      if (const auto found = ids_.find(content); found == ids_.end()) {
        set_entry(token.id, content, content);
      } else if (found->second != token.id) {
        refuse(fmt::format("gives {} the id {}, its vocabulary gives it {}", where, token.id,
                           found->second));
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
        throw DataError(fmt::format("tokenizer '{}' wants normalised text (NFC), which this build "
                                    "cannot make",
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

  void read_pre_tokenizer() {
    std::vector<Splitter> splitters;
    bool byte_level = false;
    add_pre_tokenizer(field(file_, "pre_tokenizer"), splitters, byte_level);
    if (!byte_level) refuse("has no 'ByteLevel' among its pre-tokenizers");
    result_.pre_tokenizer = PreTokenizer(std::move(splitters));
  }

  void add_pre_tokenizer(const Json& step, std::vector<Splitter>& splitters, bool& byte_level) {
    const std::string where = "pre_tokenizer";
    if (step.is_null()) return;
    const std::string type = type_of(step, where);
    if (byte_level)
      refuse(fmt::format("has the pre-tokenizer '{}' behind 'ByteLevel', which must be the last",
                         type));
    if (type == "Sequence") {
      only(step, where, {"type", "pretokenizers"});
      for (const Json& one : list(step, "pretokenizers", where))
        add_pre_tokenizer(one, splitters, byte_level);
    } else if (type == "ByteLevel") {
      only(step, "the pre-tokenizer ByteLevel",
           {"type", "add_prefix_space", "trim_offsets", "use_regex"});
      if (flag(step, "add_prefix_space", where, true))
        refuse("has 'add_prefix_space' in the pre-tokenizer, which is unknown here");
      if (flag(step, "use_regex", where, true)) splitters.push_back(Splitter::gpt2);
      byte_level = true;
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

  // The known expressions match every character, so what is between matches, and would be treated
  // in another way, does not exist: keeping the matches and isolating them is the same.
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
    if (type == "ByteLevel") {  // about offsets only
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
        (behind ? result_.suffix : result_.prefix).push_back(entry);
      }
    }
    if (!behind) refuse(fmt::format("has no text in {}", where));
  }

  void read_decoder(const Json& decoder, const std::string& where) {
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
  const std::string& source_;
  TokenizerJson result_;
  Ids ids_;
};

}  // namespace

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& source) {
  if (const JsonExtent extent = json_extent(text); extent.depth > kDeepest)
    throw DataError(
        fmt::format("tokenizer '{}' is nested deeper than {} levels", source, kDeepest));
  const Json file = json_unless_broken(text);
  if (file.is_discarded()) throw DataError(fmt::format("tokenizer '{}' is not JSON", source));
  return TokenizerReader(file, source).read();
}

}  // namespace choir
