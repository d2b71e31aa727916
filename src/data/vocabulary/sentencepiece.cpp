#include "src/data/vocabulary/sentencepiece.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <choir_features.hpp>
#include <cstdint>
#include <cstring>

#include "choir/core/error.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/data/vocabulary/vocabulary_model.hpp"

namespace choir {
namespace {

// Wire types and field numbers of the format.
constexpr std::uint32_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;
constexpr std::uint32_t kPieces = 1, kTrainer = 2, kNormalizer = 3;
constexpr std::uint32_t kPieceText = 1, kPieceScore = 2, kPieceKind = 3;
constexpr std::uint32_t kModelType = 3, kByteFallback = 35;
constexpr std::uint32_t kNormalizerName = 1, kCharsmap = 2, kBlankInFront = 3, kSqueeze = 4;
constexpr std::size_t kMostPieces = std::size_t{1} << 24;

/// Reads one message field by field.
class Fields {
 public:
  Fields(std::string_view bytes, const std::string& source, std::size_t base = 0)
      : bytes_(bytes), source_(source), base_(base) {}

  /// Reads the next field; false at the end.
  bool next() {
    if (at_ == bytes_.size()) return false;
    const std::uint64_t tag = varint();
    number_ = static_cast<std::uint32_t>(tag >> 3);
    wire_ = static_cast<std::uint32_t>(tag & 7);
    if (number_ == 0 || tag >> 32 != 0) refuse("a field without a number");
    if (wire_ == kVarint) {
      value_ = varint();
    } else if (wire_ == kFixed32 || wire_ == kFixed64) {
      text_ = take(wire_ == kFixed32 ? 4 : 8);
    } else if (wire_ == kBytes) {
      const std::uint64_t size = varint();
      begin_ = at_;
      text_ = take(size);
    } else {
      refuse(fmt::format("field {} of the unknown wire type {}", number_, wire_));
    }
    return true;
  }

  std::uint32_t number() const { return number_; }
  std::string_view text() const { return want(kBytes), text_; }
  std::int64_t integer() const { return want(kVarint), static_cast<std::int64_t>(value_); }
  bool flag() const { return integer() != 0; }
  float number_f32() const {
    want(kFixed32);
    std::uint32_t bits = 0;
    std::memcpy(&bits, text_.data(), sizeof bits);
    return std::bit_cast<float>(bits);
  }
  Fields message() const { return {text(), source_, base_ + begin_}; }

  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(
        fmt::format("'{}' is not a SentencePiece model: {} at byte {}", source_, what, base_ + at_),
        "the file may be incomplete");
  }

 private:
  void want(std::uint32_t wire) const {
    if (wire_ != wire)
      refuse(fmt::format("field {} has wire type {}, not {}", number_, wire_, wire));
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) refuse("a number without an end");
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    refuse("a number of more than 64 bits");
  }
  std::string_view take(std::uint64_t size) {
    if (size > bytes_.size() - at_)
      refuse(fmt::format("field {} has {} bytes, but only {} are present", number_, size,
                         bytes_.size() - at_));
    const std::string_view part = bytes_.substr(at_, size);
    at_ += size;
    return part;
  }

  std::string_view bytes_, text_;
  const std::string& source_;
  std::size_t base_, at_ = 0, begin_ = 0;
  std::uint32_t number_ = 0, wire_ = 0;
  std::uint64_t value_ = 0;
};

SentencePieceFile::Piece parse_piece(Fields fields) {
  SentencePieceFile::Piece piece;
  while (fields.next()) {
    if (fields.number() == kPieceText) piece.text = fields.text();
    if (fields.number() == kPieceScore) piece.score = fields.number_f32();
    if (fields.number() == kPieceKind) {
      const std::int64_t kind = fields.integer();
      if (kind < 1 || kind > 6) fields.refuse(fmt::format("a piece of the unknown kind {}", kind));
      piece.kind = static_cast<SentencePieceFile::Kind>(kind);
    }
  }
  if (piece.text.empty()) fields.refuse("a piece without text");
  return piece;
}

void put_varint(std::string& to, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) to += static_cast<char>(value | 0x80);
  to += static_cast<char>(value);
}
void put_tag(std::string& to, std::uint32_t number, std::uint32_t wire) {
  put_varint(to, number << 3 | wire);
}
void put_integer(std::string& to, std::uint32_t number, std::uint64_t value) {
  put_tag(to, number, kVarint);
  put_varint(to, value);
}
void put_text(std::string& to, std::uint32_t number, std::string_view text) {
  put_tag(to, number, kBytes);
  put_varint(to, text.size());
  to += text;
}
void put_number(std::string& to, std::uint32_t number, float value) {
  put_tag(to, number, kFixed32);
  const auto bits = std::bit_cast<std::uint32_t>(value);
  for (unsigned shift = 0; shift < 32; shift += 8) to += static_cast<char>(bits >> shift & 255u);
}

}  // namespace

SentencePieceFile SentencePieceFile::parse(std::string_view bytes, const std::string& source) {
  SentencePieceFile file;
  Fields all(bytes, source);
  while (all.next()) {
    if (all.number() == kPieces) {
      if (file.pieces.size() == kMostPieces)
        all.refuse(fmt::format("more than {} pieces", kMostPieces));
      file.pieces.push_back(parse_piece(all.message()));
    } else if (all.number() == kTrainer) {
      for (Fields trainer = all.message(); trainer.next();) {
        if (trainer.number() == kByteFallback) file.byte_fallback = trainer.flag();
        if (trainer.number() != kModelType) continue;
        const std::int64_t model = trainer.integer();
        if (model < 1 || model > 4)
          trainer.refuse(fmt::format("a model of the unknown type {}", model));
        file.model = static_cast<Model>(model);
      }
    } else if (all.number() == kNormalizer) {
      for (Fields normalizer = all.message(); normalizer.next();) {
        if (normalizer.number() == kCharsmap) file.charsmap = normalizer.text();
        if (normalizer.number() == kBlankInFront) file.blank_in_front = normalizer.flag();
        if (normalizer.number() == kSqueeze) file.squeezes_blanks = normalizer.flag();
      }
    }
  }
  if (file.pieces.empty()) all.refuse("no pieces");
  return file;
}

std::string SentencePieceFile::bytes() const {
  std::string all;
  for (const Piece& piece : pieces) {
    std::string one;
    put_text(one, kPieceText, piece.text);
    put_number(one, kPieceScore, piece.score);
    if (piece.kind != Kind::normal)
      put_integer(one, kPieceKind, static_cast<std::uint64_t>(piece.kind));
    put_text(all, kPieces, one);
  }
  std::string trainer, normalizer;
  put_integer(trainer, kModelType, static_cast<std::uint64_t>(model));
  put_integer(trainer, kByteFallback, byte_fallback ? 1 : 0);
  put_text(all, kTrainer, trainer);
  put_text(normalizer, kNormalizerName, charsmap.empty() ? "identity" : "user_defined");
  if (!charsmap.empty()) put_text(normalizer, kCharsmap, charsmap);
  put_integer(normalizer, kBlankInFront, blank_in_front ? 1 : 0);
  put_integer(normalizer, kSqueeze, squeezes_blanks ? 1 : 0);
  put_text(all, kNormalizer, normalizer);
  return all;
}

std::string sentencepiece_json(std::string_view bytes, bool text_start, bool shares_blank,
                               bool blank_at_start_only) {
  const std::uint64_t hash = fnv1a(bytes);
  nlohmann::ordered_json json;
  json["kind"] = name_of(VocabularyKind::sentencepiece);
  json["hash"] = fmt::format("{:016x}", hash == 0 ? 1 : hash);
  json["text_start"] = text_start;
  if (shares_blank) json["shares_blank"] = true;
  if (blank_at_start_only) json["blank_at_start_only"] = true;
  json["model"] = to_base64(bytes);
  return dumped(json, 1) + "\n";
}

std::string sentencepiece_bytes(const std::string& json) {
  const auto parsed = json_unless_broken(json);
  std::string bytes;
  if (!parsed.is_object() || !parsed.contains("model") || !parsed["model"].is_string() ||
      !from_base64(parsed["model"].get_ref<const std::string&>(), bytes))
    throw DataError("the vocabulary has no SentencePiece model");
  return bytes;
}

}  // namespace choir

#ifdef CHOIR_HAVE_SENTENCEPIECE
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>
#endif

namespace choir {

namespace {
constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
}

std::string to_base64(std::string_view bytes) {
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::string_view part = bytes.substr(at, 3);
    std::uint32_t word = 0;
    for (std::size_t i = 0; i < 3; ++i)
      word = word << 8 | (i < part.size() ? static_cast<unsigned char>(part[i]) : 0u);
    for (std::size_t i = 0; i < 4; ++i)
      text += i <= part.size() ? kDigits[word >> (18 - 6 * i) & 63u] : '=';
  }
  return text;
}

bool from_base64(std::string_view text, std::string& bytes) {
  bytes.clear();
  if (text.size() % 4 != 0) return false;
  for (std::size_t at = 0; at < text.size(); at += 4) {
    const bool last = at + 4 == text.size();
    const std::size_t padding = !last ? 0 : text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
    std::uint32_t word = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t digit = i < 4 - padding ? kDigits.find(text[at + i]) : 0;
      if (digit == std::string_view::npos) return false;
      word = word << 6 | static_cast<std::uint32_t>(digit);
    }
    for (std::size_t i = 0; i < 3 - padding; ++i)
      bytes += static_cast<char>(word >> (16 - 8 * i) & 255u);
  }
  return true;
}

#ifndef CHOIR_HAVE_SENTENCEPIECE

namespace {
constexpr const char* kInstall =
    "install libsentencepiece-dev and build again, or use characters (--type char)";
[[noreturn]] void refuse(const std::string& source) {
  throw DataError(
      fmt::format("'{}' is a SentencePiece model, and this build has no SentencePiece", source),
      kInstall);
}
}  // namespace

SharedVocabularyModel open_sentencepiece(std::string, const std::string& source) {
  refuse(source);
}
SharedVocabularyModel sentencepiece_from_json(const nlohmann::json&, const std::string& source) {
  refuse(source);
}
SharedVocabularyModel train_sentencepiece(const VocabularyTraining& training,
                                          const std::vector<std::string>&) {
  throw DeckError(
      fmt::format("units of type {} need SentencePiece, which this build lacks", training.type),
      kInstall);
}

#else

namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581, SentencePiece's form of a space
constexpr std::string_view kBytePiece = "<0x00>";    // and of a byte

std::uint64_t model_hash(std::string_view bytes) {
  const std::uint64_t h = fnv1a(bytes);
  return h == 0 ? 1 : h;
}

std::string with_blanks(const std::string& piece) {
  std::string text;
  for (std::size_t done = 0; done < piece.size();) {
    const std::size_t at = std::min(piece.find(kSpace, done), piece.size());
    text.append(piece, done, at - done);
    if (at < piece.size()) text += ' ';
    done = std::min(at + kSpace.size(), piece.size());
  }
  return text;
}

/// SentencePiece returns its errors, but its trie throws them, for example for a piece that
/// contains a zero.
bool loads(sentencepiece::SentencePieceProcessor& processor, const std::string& bytes) {
  try {
    return processor.LoadFromSerializedProto(bytes).ok() && processor.GetPieceSize() > 0;
  } catch (const std::exception&) {
    return false;
  }
}

/// The text of an error of SentencePiece ("Vocabulary size too high") without file, line and
/// condition.
std::string_view without_place(std::string_view message) {
  const std::size_t bracket = message.find(")] ");
  return bracket == std::string_view::npos ? message : message.substr(bracket + 3);
}

/// True if every blank in a piece has only blanks before it. Words are then split into pieces
/// independently.
bool within_words(const SentencePieceFile& file) {
  for (const SentencePieceFile::Piece& piece : file.pieces) {
    std::string_view text = piece.text;
    while (text.starts_with(kSpace)) text.remove_prefix(kSpace.size());
    if (text.find(kSpace) != std::string_view::npos) return false;
  }
  return file.blank_in_front;
}

class SentencePieceModel : public VocabularyModel {
 public:
  SentencePieceModel(std::string bytes, const std::string& source, bool text_start = true,
                     bool shares_blank = false, bool blank_at_start_only = false)
      : bytes_(std::move(bytes)),
        text_start_(text_start),
        shares_blank_(shares_blank),
        blank_at_start_only_(blank_at_start_only) {
    if (!loads(processor_, bytes_))
      throw DataError(
          fmt::format("'{}' is not a tokenizer: neither JSON nor a SentencePiece model", source),
          "'choir prepare tokenizer' makes one");
    hash_ = model_hash(bytes_);
    in_parts_ = within_words(SentencePieceFile::parse(bytes_, source));
  }
  VocabularyKind kind() const override { return VocabularyKind::sentencepiece; }
  int size() const override { return processor_.GetPieceSize(); }
  std::uint64_t hash() const override { return hash_; }
  std::string sentencepiece_model() const override { return bytes_; }

  std::string to_json() const override {
    nlohmann::ordered_json all;
    all["kind"] = name_of(kind());
    all["size"] = size();
    all["hash"] = fmt::format("{:016x}", hash_);
    if (!text_start_) all["text_start"] = false;
    if (shares_blank_) all["shares_blank"] = true;
    if (blank_at_start_only_) all["blank_at_start_only"] = true;
    all["model"] = to_base64(bytes_);
    return dumped(all, 1) + "\n";
  }

  // A part ends before the blank in front of a word; SentencePiece itself adds this blank before a
  // text. If pieces cross words, nothing is certain before the end.
  std::size_t encode_part(std::string_view text, bool more_follows, std::string_view source,
                          std::int64_t base, std::vector<std::int32_t>& ids) const override {
    if (more_follows) text = text.substr(0, in_parts_ ? last_word(text) : 0);
    const bool goes_on = in_parts_ && base > 0 && text.starts_with(' ');
    const Vocabulary::Encoded encoded = goes_on ? encoded_as_is(text.substr(1)) : try_encode(text);
    if (!encoded.unknown.empty())
      throw DataError(
          fmt::format("{} of {} is not in the vocabulary of {}", encoded.unknown, source, size()));
    ids.insert(ids.end(), encoded.ids.begin(), encoded.ids.end());
    return text.size();
  }
  Vocabulary::Encoded try_encode(std::string_view text) const override {
    return encoded_as_is(text.substr(shares_blank_ && text.starts_with(' ') ? 1 : 0));
  }
  Vocabulary::Encoded encoded_as_is(std::string_view text) const {
    Vocabulary::Encoded encoded;
    std::vector<std::string> pieces;
    check(processor_.Encode(text, &pieces));
    for (const std::string& piece : pieces) {
      const int id = processor_.PieceToId(piece);
      encoded.ids.push_back(id);
      if (processor_.IsUnknown(id) && encoded.unknown.empty())
        encoded.unknown = "'" + with_blanks(piece) + "'";
    }
    return encoded;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::vector<int> checked;
    for (const std::int32_t id : ids) checked.push_back(check(id));
    std::string text;
    check(processor_.Decode(checked, &text));
    return text;
  }
  std::string piece(std::int32_t id) const override {
    if (processor_.IsControl(check(id))) return "";
    const std::string& piece = processor_.IdToPiece(id);
    if (unsigned byte = 0; processor_.IsByte(id) && piece.size() == kBytePiece.size()) {
      std::from_chars(piece.data() + 3, piece.data() + 5, byte, 16);
      return {static_cast<char>(byte)};
    }
    return with_blanks(processor_.IsUnknown(id) ? processor_.DecodeIds({id}) : piece);
  }
  std::vector<std::int32_t> text_start() const override {
    if (!text_start_ || processor_.bos_id() < 0) return {};
    return {processor_.bos_id()};
  }
  std::optional<std::int32_t> end_of_text() const override {
    if (processor_.eos_id() < 0) return std::nullopt;
    return processor_.eos_id();
  }
  std::optional<std::int32_t> control(std::string_view piece) const override {
    const int id = processor_.PieceToId(piece);
    return processor_.IsControl(id) ? std::optional(id) : std::nullopt;
  }

 private:
  /// The position of the last blank with something else before it; 0 if there is none.
  static std::size_t last_word(std::string_view text) {
    std::size_t at = text.rfind(' ');
    while (at != std::string_view::npos && at > 0 && text[at - 1] == ' ') --at;
    return at == std::string_view::npos ? 0 : at;
  }
  static void check(const sentencepiece::util::Status& status) {
    if (!status.ok()) throw DataError(fmt::format("SentencePiece: {}", status.ToString()));
  }
  int check(std::int32_t id) const {
    if (id < 0 || id >= size())
      throw DataError(fmt::format("id {} is outside the vocabulary of {}", id, size()));
    return id;
  }

  std::string bytes_;
  sentencepiece::SentencePieceProcessor processor_;
  std::uint64_t hash_ = 0;
  bool text_start_, in_parts_ = false;
  bool shares_blank_, blank_at_start_only_;  ///< see sentencepiece_json()
};

class Sentences : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(const std::vector<std::string>& all) : all_(all) {}
  bool done() const override { return at_ == all_.size(); }
  void Next() override { ++at_; }
  const std::string& value() const override { return all_[at_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& all_;
  std::size_t at_ = 0;
};

}  // namespace

SharedVocabularyModel open_sentencepiece(std::string bytes, const std::string& source) {
  return std::make_shared<SentencePieceModel>(std::move(bytes), source);
}

SharedVocabularyModel sentencepiece_from_json(const nlohmann::json& json,
                                              const std::string& source) {
  std::string bytes;
  const auto field = [&](const char* key) {
    return json.contains(key) && json[key].is_string() ? json[key].get<std::string>()
                                                       : std::string();
  };
  if (!from_base64(field("model"), bytes) ||
      fmt::format("{:016x}", model_hash(bytes)) != field("hash"))
    throw DataError(
        fmt::format("tokenizer '{}' is damaged: its model does not fit its hash", source),
        "make it again with 'choir prepare tokenizer'");
  const bool text_start = !json.contains("text_start") || json["text_start"] != false;
  return std::make_shared<SentencePieceModel>(std::move(bytes), source, text_start,
                                              json.value("shares_blank", false),
                                              json.value("blank_at_start_only", false));
}

// The text is not normalised (except for blanks), every character gets a piece, and there are no
// pieces for the beginning and the end of a sentence because CTC does not use them. <unk> cannot be
// omitted; labels never contain it.
SharedVocabularyModel train_sentencepiece(const VocabularyTraining& training,
                                          const std::vector<std::string>& sentences) {
  Sentences all(sentences);
  std::string bytes;
  sentencepiece::SetRandomGeneratorSeed(1);
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      {{"model_type", training.type},
       {"vocab_size", std::to_string(training.vocab_size)},
       {"character_coverage", "1.0"},
       {"normalization_rule_name", "identity"},
       {"num_threads", "1"},
       {"shuffle_input_sentence", "false"},
       {"bos_id", "-1"},
       {"eos_id", "-1"},
       {"pad_id", "-1"},
       {"unk_id", "0"},
       {"minloglevel", "2"}},
      &all, &bytes);
  if (!status.ok())
    throw DeckError(
        fmt::format("cannot train a {} vocabulary of {} on this text: {}", training.type,
                    training.vocab_size, without_place(status.message())),
        "choose another --vocab-size: at least one piece per character, at most as many pieces as "
        "the words of the text allow");
  return open_sentencepiece(std::move(bytes), "the trained model");
}

#endif

}  // namespace choir
