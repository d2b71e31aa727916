#include "src/data/text/subword_model.hpp"

#include <choir_features.hpp>
#include <nlohmann/json.hpp>

#include "choir/core/error.hpp"
#include "src/data/text/subword_base64.hpp"

#ifdef CHOIR_HAVE_SENTENCEPIECE
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>
#endif

namespace choir {

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

std::shared_ptr<const UnitModel> open_subword_model(std::string, const std::string& source) {
  refuse(source);
}
std::shared_ptr<const UnitModel> subword_model_from_json(const nlohmann::json&,
                                                         const std::string& source) {
  refuse(source);
}
std::shared_ptr<const UnitModel> train_subword_model(const UnitTraining& training,
                                                     const std::vector<std::string>&) {
  throw DeckError(
      fmt::format("units of type {} need SentencePiece, which this build has not", training.type),
      kInstall);
}

#else

namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581, how SentencePiece writes a blank

std::uint64_t hash_of(std::string_view bytes) {
  std::uint64_t h = 0xcbf29ce484222325ull;
  for (const char c : bytes) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
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

class SubwordModel : public UnitModel {
 public:
  SubwordModel(std::string bytes, const std::string& source) : bytes_(std::move(bytes)) {
    if (!loads(processor_, bytes_))
      throw DataError(
          fmt::format("'{}' is not a tokenizer: neither JSON nor a SentencePiece model", source),
          "'choir prepare tokenizer' makes one");
    hash_ = hash_of(bytes_);
  }
  std::string_view kind() const override { return kSubwordKind; }
  int vocab_size() const override { return processor_.GetPieceSize(); }
  std::uint64_t hash() const override { return hash_; }
  std::string sentencepiece_model() const override { return bytes_; }

  std::string to_json() const override {
    nlohmann::ordered_json all;
    all["kind"] = kSubwordKind;
    all["size"] = vocab_size();
    all["hash"] = fmt::format("{:016x}", hash_);
    all["model"] = to_base64(bytes_);
    return all.dump(1) + "\n";
  }

  TextUnits::Encoded encode(std::string_view text) const override {
    TextUnits::Encoded encoded;
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
    if (id < 0 || id >= vocab_size())
      throw DataError(fmt::format("id {} is outside the vocabulary of {}", id, vocab_size()));
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

std::shared_ptr<const UnitModel> open_subword_model(std::string bytes, const std::string& source) {
  return std::make_shared<SubwordModel>(std::move(bytes), source);
}

std::shared_ptr<const UnitModel> subword_model_from_json(const nlohmann::json& json,
                                                         const std::string& source) {
  std::string bytes;
  const auto field = [&](const char* key) {
    return json.contains(key) && json[key].is_string() ? json[key].get<std::string>()
                                                       : std::string();
  };
  if (!from_base64(field("model"), bytes) ||
      fmt::format("{:016x}", hash_of(bytes)) != field("hash"))
    throw DataError(
        fmt::format("tokenizer '{}' is damaged: its model does not fit its hash", source),
        "make it again with 'choir prepare tokenizer'");
  return open_subword_model(std::move(bytes), source);
}

// The text is taken as it is (no normalisation beyond blanks), every character of it gets a piece,
// and there are no pieces for the beginning and the end of a sentence: CTC has no use for them.
// <unk> cannot be left out; no label is ever written with it.
std::shared_ptr<const UnitModel> train_subword_model(const UnitTraining& training,
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
  return open_subword_model(std::move(bytes), "the trained model");
}

#endif

}  // namespace choir
