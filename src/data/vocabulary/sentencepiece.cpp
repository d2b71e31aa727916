#include <choir_features.hpp>

#include <cstdint>
#include "choir/core/json_value.hpp"

#include "choir/core/error.hpp"
#include "choir/core/text.hpp"
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
      fmt::format("units of type {} need SentencePiece, which this build has not", training.type),
      kInstall);
}

#else

namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581, how SentencePiece writes a space

std::uint64_t model_hash(std::string_view bytes) {
  const std::uint64_t h = fnv1a(bytes);
  return h == 0 ? 1 : h;
}

std::string with_blanks(std::string piece) {
  for (std::size_t at = piece.find(kSpace); at != std::string::npos; at = piece.find(kSpace, at))
    piece.replace(at, kSpace.size(), " ");
  return piece;
}

/// SentencePiece returns what is wrong, but the trie inside throws it: of a piece with a zero in
/// it.
bool loads(sentencepiece::SentencePieceProcessor& processor, const std::string& bytes) {
  try {
    return processor.LoadFromSerializedProto(bytes).ok() && processor.GetPieceSize() > 0;
  } catch (const std::exception&) {
    return false;
  }
}

class SentencePieceModel : public VocabularyModel {
 public:
  SentencePieceModel(std::string bytes, const std::string& source) : bytes_(std::move(bytes)) {
    if (!loads(processor_, bytes_))
      throw DataError(
          fmt::format("'{}' is not a tokenizer: neither JSON nor a SentencePiece model", source),
          "'choir prepare tokenizer' makes one");
    hash_ = model_hash(bytes_);
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
    all["model"] = to_base64(bytes_);
    return dumped(all, 1) + "\n";
  }

  std::size_t encode_part(std::string_view text, bool more_follows, std::string_view source,
                          std::int64_t, std::vector<std::int32_t>& ids) const override {
    CHOIR_CHECK(!more_follows, "pieces of {} are found in the whole of it", source);
    const Vocabulary::Encoded encoded = try_encode(text);
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
    return with_blanks(processor_.IsUnknown(id) ? processor_.DecodeIds({id})
                                                : processor_.IdToPiece(id));
  }

 private:
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
  return open_sentencepiece(std::move(bytes), source);
}

// The text is taken as it is (no normalisation beyond blanks), every character of it gets a piece,
// and there are no pieces for the beginning and the end of a sentence: CTC has no use for them.
// <unk> cannot be left out; no label is ever written with it.
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
    throw DeckError(fmt::format("no {} vocabulary of {} can be made of this text: {}",
                                training.type, training.vocab_size, status.ToString()),
                    "choose another --vocab-size: at least one piece for every character, at most "
                    "what the text has words for");
  return open_sentencepiece(std::move(bytes), "the trained model");
}

#endif

}  // namespace choir
