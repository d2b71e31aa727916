#include <choir_features.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include "src/core/json_value.hpp"

#include "choir/core/error.hpp"
#include "src/core/text.hpp"
#include "src/data/vocabulary/sentencepiece_model.hpp"
#include "src/data/vocabulary/vocabulary_model.hpp"

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
  SentencePieceModel(std::string bytes, const std::string& source, bool text_start = true)
      : bytes_(std::move(bytes)), text_start_(text_start) {
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
    all["model"] = to_base64(bytes_);
    return dumped(all, 1) + "\n";
  }

  // A part ends before the blank in front of a word; SentencePiece itself adds this blank before a
  // text. If pieces cross words, nothing is certain before the end.
  std::size_t encode_part(std::string_view text, bool more_follows, std::string_view source,
                          std::int64_t base, std::vector<std::int32_t>& ids) const override {
    if (more_follows) text = text.substr(0, in_parts_ ? last_word(text) : 0);
    const bool goes_on = in_parts_ && base > 0 && text.starts_with(' ');
    const Vocabulary::Encoded encoded = try_encode(text.substr(goes_on ? 1 : 0));
    if (!encoded.unknown.empty())
      throw DataError(
          fmt::format("{} of {} is not in the vocabulary of {}", encoded.unknown, source, size()));
    ids.insert(ids.end(), encoded.ids.begin(), encoded.ids.end());
    return text.size();
  }
  Vocabulary::Encoded try_encode(std::string_view text) const override {
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
  return std::make_shared<SentencePieceModel>(std::move(bytes), source, text_start);
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
