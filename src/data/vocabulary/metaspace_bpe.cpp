// A tokenizer.json that transformers wrote for a SentencePiece model of byte pairs (Llama 2,
// Mistral and their relatives): pairs of characters with U+2581 for blanks, and bytes for
// characters that are not in the vocabulary. It becomes the SentencePiece model that gives the same
// ids.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "choir/core/error.hpp"
#include "src/core/json_value.hpp"
#include "src/data/vocabulary/pre_tokenizers.hpp"
#include "src/data/vocabulary/sentencepiece.hpp"
#include "src/data/vocabulary/utf8.hpp"
#include "src/data/vocabulary/vocabulary_model.hpp"

namespace choir {
namespace {

using Json = nlohmann::json;
using Kind = SentencePieceFile::Kind;

constexpr std::int32_t kIdLimit = 1 << 24;

class MetaspaceReader {
 public:
  MetaspaceReader(const Json& file, const std::string& source) : file_(file), source_(source) {}

  /// True for files of the library's own training, which need not have the ids of a SentencePiece
  /// model.
  bool may_be_trained() const {
    return type_of(value(file_, "pre_tokenizer")) == "Metaspace" &&
           (value(file_, "normalizer").is_null() || type_of(value(file_, "normalizer")) == "NFC");
  }

  std::string sentencepiece() {
    model_.model = SentencePieceFile::Model::bpe;
    model_.byte_fallback = true;
    model_.blank_in_front = false;
    model_.squeezes_blanks = false;
    read_normalizer(value(file_, "normalizer"));
    read_pre_tokenizer(value(file_, "pre_tokenizer"));
    read_vocabulary();
    read_added();
    read_merges();
    return sentencepiece_json(model_.bytes(), begins_with_start(value(file_, "post_processor")),
                              shares_blank_, blank_at_start_only_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(fmt::format("tokenizer '{}' {}", source_, what),
                    "give the tokenizer.model from which it was made");
  }
  static const Json& value(const Json& object, const char* key) {
    static const Json nothing;
    if (!object.is_object()) return nothing;
    const auto found = object.find(key);
    return found == object.end() ? nothing : *found;
  }
  static std::string type_of(const Json& step) {
    const Json& type = value(step, "type");
    return type.is_string() ? type.get<std::string>() : "";
  }
  /// The steps of a sequence, or the step itself.
  static std::vector<Json> steps_of(const Json& step, const char* key) {
    if (step.is_null()) return {};
    if (type_of(step) != "Sequence") return {step};
    const Json& list = value(step, key);
    return list.is_array() ? list.get<std::vector<Json>>() : std::vector<Json>{};
  }

  void read_normalizer(const Json& normalizer) {
    for (const Json& step : steps_of(normalizer, "normalizers")) {
      const std::string type = type_of(step);
      if (type == "Prepend" && value(step, "prepend") == kBlankSign)
        model_.blank_in_front = true;
      else if (type != "Replace" || value(value(step, "pattern"), "String") != " " ||
               value(step, "content") != kBlankSign)
        refuse(fmt::format("has the normalizer {}, which is unknown here", dumped_safely(step)));
    }
  }

  void read_pre_tokenizer(const Json& pre) {
    for (const Json& step : steps_of(pre, "pretokenizers")) {
      const std::string type = type_of(step);
      if (type == "Metaspace") {
        const Json& scheme = value(step, "prepend_scheme");
        if (value(step, "replacement") != kBlankSign)
          refuse("replaces blanks by another character than U+2581");
        if (scheme.is_null() ? value(step, "add_prefix_space") != false : scheme != "never")
          model_.blank_in_front = shares_blank_ = true;
        blank_at_start_only_ = scheme == "first";
        splits_ = value(step, "split") != false;
      } else if (type == "Split" && value(value(step, "pattern"), "String") == " ") {
        // Blanks were replaced by the normalizer, so this finds nothing.
        if (value(file_, "normalizer").is_null())
          refuse("splits text at blanks in its pre-tokenizer");
      } else {
        refuse(fmt::format("has the pre-tokenizer {}, which is unknown here", dumped_safely(step)));
      }
    }
  }

  static std::optional<int> byte_of(std::string_view piece) {
    if (piece.size() != 6 || !piece.starts_with("<0x") || piece.back() != '>') return std::nullopt;
    const std::string digits(piece.substr(3, 2));
    char* end = nullptr;
    const long byte = std::strtol(digits.c_str(), &end, 16);
    return end == digits.c_str() + 2 ? std::optional<int>(static_cast<int>(byte)) : std::nullopt;
  }

  SentencePieceFile::Piece& slot(std::int64_t id, const std::string& piece) {
    if (id < 0 || id >= kIdLimit || id > 2 * entries_ + 65536)
      refuse(fmt::format("gives '{}' the id {}, although it has {} entries", piece, id, entries_));
    const auto at = static_cast<std::size_t>(id);
    while (model_.pieces.size() <= at)
      model_.pieces.push_back({fmt::format("[PAD{}]", model_.pieces.size()), 0, Kind::unused});
    return model_.pieces[at];
  }
  std::int64_t id_of(const Json& id, const std::string& piece) const {
    if (!id.is_number_integer()) refuse(fmt::format("gives '{}' an id that is no integer", piece));
    return id.get<std::int64_t>();
  }

  void read_vocabulary() {
    const Json& model = value(file_, "model");
    const Json& vocabulary = value(model, "vocab");
    if (!vocabulary.is_object() || !value(model, "merges").is_array())
      refuse("has no vocabulary or no merges in its model");
    if (!value(model, "dropout").is_null())
      refuse("has 'dropout' in the model: its ids would be random");
    if (value(model, "ignore_merges") == true) refuse("has 'ignore_merges' in the model");
    entries_ = static_cast<std::int64_t>(vocabulary.size() + value(file_, "added_tokens").size());
    std::set<int> bytes;
    std::set<std::int64_t> seen;
    for (const auto& [piece, id] : vocabulary.items()) {
      const std::int64_t at = id_of(id, piece);
      if (!seen.insert(at).second) refuse(fmt::format("gives two entries the id {}", at));
      const auto byte = byte_of(piece);
      if (byte) bytes.insert(*byte);
      // Pieces without a merge are single characters; their score is never compared.
      slot(at, piece) = {piece, 0, byte ? Kind::byte : Kind::normal};
      ids_.emplace(piece, at);
    }
    if (bytes.size() != 256)
      refuse(fmt::format("has {} of 256 bytes in its vocabulary", bytes.size()));
    const Json& unknown = value(model, "unk_token");
    unknown_ = unknown.is_string() ? unknown.get<std::string>() : "<unk>";
    if (!ids_.contains(unknown_)) refuse(fmt::format("has no token '{}'", unknown_));
    slot(ids_.at(unknown_), unknown_).kind = Kind::unknown;
  }

  void read_added() {
    const Json& all = value(file_, "added_tokens");
    if (!all.is_array()) return;
    for (const Json& one : all) {
      const Json& content = value(one, "content");
      if (!content.is_string() || content.get_ref<const std::string&>().empty())
        refuse("has an added token without content");
      const std::string piece = content.get<std::string>();
      if (value(one, "normalized") == true && piece.find(' ') != std::string::npos)
        refuse(fmt::format("normalises the added token '{}'", piece));
      const std::int64_t at = id_of(value(one, "id"), piece);
      if (const auto known = ids_.find(piece); known != ids_.end() && known->second != at)
        refuse(fmt::format("gives the added token '{}' the id {}, its vocabulary gives it {}",
                           piece, at, known->second));
      added_.insert(piece);
      if (piece == unknown_) continue;
      SentencePieceFile::Piece& there = slot(at, piece);
      if (there.kind != Kind::unused && there.text != piece)
        refuse(fmt::format("gives '{}' the id {}, which another entry has", piece, at));
      there = {piece, 0, value(one, "special") == true ? Kind::control : Kind::user_defined};
    }
  }

  /// SentencePiece joins the two neighbours whose joined piece has the highest score. That equals
  /// the order of the merges if every way to join a piece is listed, and the merges of one piece
  /// follow one another.
  void read_merges() {
    std::map<std::string, std::pair<std::int64_t, std::int64_t>> joined;  // first merge, number
    std::int64_t rank = 0;
    for (const Json& merge : value(value(file_, "model"), "merges")) {
      const auto [left, right] = parts_of(merge, rank);
      const std::string both = left + right;
      if (!ids_.contains(left) || !ids_.contains(right) || !ids_.contains(both))
        refuse(fmt::format("has merge {} of '{}' and '{}', which are not all in the vocabulary",
                           rank, left, right));
      auto [at, fresh] = joined.try_emplace(both, rank, 0);
      if (rank != at->second.first + at->second.second)
        refuse(fmt::format("joins '{}' in merges {} and {}, with others between them", both,
                           at->second.first, rank));
      ++at->second.second;
      ++rank;
    }
    for (const auto& [piece, id] : ids_) {
      SentencePieceFile::Piece& there = slot(id, piece);
      if (there.kind != Kind::normal) continue;
      if (splits_ && piece.find(kBlankSign, 1) != std::string::npos)
        refuse(fmt::format("splits text in front of blanks, but has the piece '{}'", piece));
      const auto found = joined.find(piece);
      const std::int64_t listed = found == joined.end() ? 0 : found->second.second;
      if (const std::int64_t ways = ways_to_join(piece); ways != listed)
        refuse(fmt::format("lists {} of {} ways to join '{}'", listed, ways, piece));
      if (found != joined.end()) there.score = -static_cast<float>(found->second.first);
    }
  }
  std::pair<std::string, std::string> parts_of(const Json& merge, std::int64_t rank) const {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
      return {merge[0].get<std::string>(), merge[1].get<std::string>()};
    if (merge.is_string()) {
      const std::string both = merge.get<std::string>();
      const std::size_t blank = both.find(' ');
      if (blank != both.npos && both.find(' ', blank + 1) == both.npos)
        return {both.substr(0, blank), both.substr(blank + 1)};
    }
    refuse(fmt::format("has merge {} that is not two entries", rank));
  }
  /// The number of pairs of normal pieces that join to this one.
  std::int64_t ways_to_join(const std::string& piece) const {
    std::int64_t ways = 0;
    for (std::size_t at = 1; at < piece.size(); ++at) {
      if ((static_cast<unsigned char>(piece[at]) & 0xC0) == 0x80) continue;  // inside a character
      ways += joins(piece.substr(0, at)) && joins(piece.substr(at));
    }
    return ways;
  }
  bool joins(const std::string& part) const {
    const auto found = ids_.find(part);
    return found != ids_.end() &&
           model_.pieces[static_cast<std::size_t>(found->second)].kind == Kind::normal;
  }

  bool begins_with_start(const Json& step) const {
    if (step.is_null()) return false;
    const std::string type = type_of(step);
    if (type == "Sequence") {
      bool begins = false;
      for (const Json& one : steps_of(step, "processors"))
        begins = begins || begins_with_start(one);
      return begins;
    }
    if (type != "TemplateProcessing")
      refuse(fmt::format("has the post-processor '{}', which is unknown here", type));
    bool begins = false, behind = false;
    for (const Json& part : value(step, "single")) {
      if (part.contains("Sequence")) {
        behind = true;
      } else if (const Json& token = value(value(part, "SpecialToken"), "id");
                 token == "<s>" && !behind) {
        begins = true;
      } else {
        refuse(fmt::format("puts {} {} every text", dumped_safely(token),
                           behind ? "behind" : "in front of"));
      }
    }
    return begins;
  }

  const Json& file_;
  const std::string& source_;
  SentencePieceFile model_;
  std::map<std::string, std::int64_t> ids_;
  std::set<std::string> added_;
  std::string unknown_;
  std::int64_t entries_ = 0;
  bool splits_ = false, shares_blank_ = false, blank_at_start_only_ = false;
};

}  // namespace

bool is_metaspace_bpe(std::string_view json) {
  const std::size_t key = json.find("\"byte_fallback\"");
  if (key == json.npos) return false;
  const std::size_t colon = json.find_first_not_of(" \t\r\n", key + 15);
  if (colon == json.npos || json[colon] != ':') return false;
  const std::size_t word = json.find_first_not_of(" \t\r\n", colon + 1);
  return word != json.npos && json.substr(word).starts_with("true");
}

std::string sentencepiece_of_metaspace_bpe(std::string_view json, const std::string& source) {
  JsonLimits limits;
  limits.keys = kAnyNumberOfKeys;
  const Json file = read_json(json, fmt::format("tokenizer '{}'", source), limits);
  MetaspaceReader reader(file, source);
  try {
    return reader.sentencepiece();
  } catch (const DataError&) {
    if (!reader.may_be_trained()) throw;
    return "";
  }
}

}  // namespace choir
