#include "src/data/vocabulary/sentencepiece_model.hpp"

#include <bit>
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

std::string sentencepiece_json(std::string_view bytes, bool text_start) {
  const std::uint64_t hash = fnv1a(bytes);
  nlohmann::ordered_json json;
  json["kind"] = name_of(VocabularyKind::sentencepiece);
  json["hash"] = fmt::format("{:016x}", hash == 0 ? 1 : hash);
  json["text_start"] = text_start;
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
