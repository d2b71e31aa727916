#include "src/data/vocabulary/bpe_tokenizer.hpp"

#include <algorithm>
#include <mutex>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/text.hpp"
#include "src/data/vocabulary/nfc.hpp"
#include "src/data/vocabulary/tokenizer_json.hpp"
#include "src/data/vocabulary/utf8.hpp"
#include "src/data/vocabulary/vocabulary_model.hpp"

namespace choir {
namespace {

std::uint64_t entries_hash(const std::vector<std::string>& entries) {
  std::uint64_t h = 0xcbf29ce484222325ull;
  const auto mix = [&](unsigned char byte) { h = (h ^ byte) * 0x100000001b3ull; };
  for (const std::string& entry : entries) {
    for (int shift = 0; shift < 32; shift += 8)
      mix(static_cast<unsigned char>(entry.size() >> shift));
    for (const char c : entry) mix(static_cast<unsigned char>(c));
  }
  return h == 0 ? 1 : h;
}

std::unordered_map<std::string, std::int32_t> whole_pieces(const TokenizerJson& file) {
  std::unordered_map<std::string, std::int32_t> whole;
  if (!file.ignore_merges) return whole;
  for (std::size_t id = 0; id < file.bytes.size(); ++id)
    if (!file.bytes[id].empty()) whole.emplace(file.bytes[id], static_cast<std::int32_t>(id));
  for (const AddedToken& token : file.added) whole.erase(token.content);
  return whole;
}

PieceEncoder piece_encoder(const TokenizerJson& file) {
  return file.characters ? PieceEncoder(*file.characters, file.merges)
                         : PieceEncoder(file.byte_ids, file.merges, whole_pieces(file));
}

/// True if no text has a byte or a character without a symbol.
bool encodes_all(const TokenizerJson& file) {
  return (file.characters && file.characters->unknown) ||
         std::find(file.byte_ids.begin(), file.byte_ids.end(), -1) == file.byte_ids.end();
}

}  // namespace

struct BpeTokenizer::Tables {
  Tables(std::string text, TokenizerJson parts)
      : json(std::move(text)),
        file(std::move(parts)),
        encoder(piece_encoder(file)),
        hash(entries_hash(file.bytes)),
        special(file.bytes.size()),
        encodes_all(choir::encodes_all(file)) {
    std::vector<AddedToken> raw, normal;
    for (const AddedToken& token : file.added) {
      // Without a normaliser both kinds are searched in the same text, one after the other.
      if (!token.normalized) {
        raw.push_back(token);
      } else {
        normal.push_back(token);
        if (file.nfc) normal.back().content = nfc(token.content);
      }
      special[static_cast<std::size_t>(token.id)] = token.special;
      single_words |= token.single_word;
    }
    raw_tokens = AddedTokenFinder(std::move(raw));
    normal_tokens = AddedTokenFinder(std::move(normal));
  }

  std::string json;
  TokenizerJson file;
  PieceEncoder encoder;
  std::uint64_t hash;
  std::vector<bool> special;
  bool encodes_all;
  bool single_words = false;  ///< true if an added token depends on the character in front of it
  AddedTokenFinder raw_tokens, normal_tokens;
};

namespace {

/// The end of the front part of `text` in which matches do not depend on the following text:
/// neither they nor their blanks reach the end.
std::size_t certain_matches(const AddedTokenFinder& finder, std::string_view text) {
  constexpr std::size_t kOneCharacter = 4;
  const std::size_t end = before_trailing_blanks(text), held = finder.longest() + kOneCharacter;
  return end > held ? previous_character(text, end - held + 1) : 0;
}

}  // namespace

/// The conversion of one text. Added tokens divide the text into stretches, each stretch is
/// normalised, tokens of the normalised text divide it again, and the rest is split into pieces. If
/// more text follows, the conversion stops where ids may still change. Only the ids up to the last
/// mark() count: from there the text can be converted as if nothing stood in front of it.
class BpeTokenizer::Run {
 public:
  Run(const Tables& tables, std::string_view text, std::string_view source, std::int64_t base,
      bool more, const BpeEncoding& how, PieceCache& cache, std::vector<std::int32_t>& ids)
      : tables_(tables),
        source_(source),
        base_(base),
        text_(text),
        more_(more),
        how_(how),
        cache_(cache),
        ids_(ids),
        good_ids_(ids.size()) {}

  std::size_t go() {
    between(tables_.raw_tokens, text_, more_,
            [&](std::string_view stretch, bool more) { encode_stretch(stretch, more); });
    if (!more_) return text_.size();
    ids_.resize(good_ids_);
    return good_place_;
  }

 private:
  template <class Encode>
  void between(const AddedTokenFinder& finder, std::string_view text, bool more,
               const Encode& encode) {
    if (finder.empty()) return encode(text, more);
    const std::size_t certain = more ? certain_matches(finder, text) : text.size();
    std::size_t done = 0;
    for (const AddedTokenFinder::Match& match : finder.find(text, how_.special)) {
      if (match.from >= certain) break;
      if (match.begin > done) encode(text.substr(done, match.begin - done), false);
      ids_.push_back(match.id);
      done = match.end;
      mark(text.data() + done, true);
    }
    if (done < certain) encode(text.substr(done, certain - done), more);
  }

  void encode_stretch(std::string_view stretch, bool more) {
    if (!tables_.file.nfc) return encode_normal(stretch, more);
    if (more) stretch = stretch.substr(0, nfc_certain_end(stretch));
    const NfcText normal(stretch);
    normal_ = &normal;
    stretch_ = stretch;
    encode_normal(normal.text(), more);
    normal_ = nullptr;
  }

  void encode_normal(std::string_view stretch, bool more) {
    between(tables_.normal_tokens, stretch, more,
            [&](std::string_view plain, bool cut) { encode_plain(plain, cut); });
  }

  void encode_plain(std::string_view plain, bool more) {
    std::string with_blank;
    std::string_view text = plain;
    if (adds_blank(plain)) text = with_blank.append(" ").append(plain);
    const auto encode = [&](std::string_view piece) {
      // The bytes of the piece in `plain`; an added blank is none of them.
      const auto end = static_cast<std::size_t>(piece.data() + piece.size() - text.data()) -
                       (text.size() - plain.size());
      const std::size_t size = std::min(piece.size(), end);
      if (!tables_.encodes_all) check(piece.substr(piece.size() - size), plain.data() + end - size);
      tables_.encoder.encode(piece, cache_, ids_);
      if (more_) mark(plain.data() + end, false);
    };
    if (more) {
      tables_.file.pre_tokenizer.split_part(text, encode);
    } else {
      tables_.file.pre_tokenizer.split(text, encode);
    }
  }

  bool begins_with_blank(std::string_view text) const {
    return choir::begins_with_blank(text, tables_.file.characters.has_value());
  }

  /// True if a blank belongs in front of the stretch `plain` of the text or of its normal form.
  bool adds_blank(std::string_view plain) const {
    if (tables_.file.added_blank == AddedBlank::never || plain.empty() || begins_with_blank(plain))
      return false;
    const bool first =
        plain.data() == (normal_ == nullptr ? text_.data() : normal_->text().data()) &&
        (normal_ == nullptr || stretch_.data() == text_.data());
    if (first && how_.behind_text) return false;
    return tables_.file.added_blank == AddedBlank::always || (first && !how_.behind_token);
  }

  /// A vocabulary trained on text alone lacks the bytes or characters that this text did not
  /// contain. `place` is the beginning of the piece in the text or in its normal form.
  void check(std::string_view piece, const char* place) const {
    const auto refuse = [&](const std::string& what, std::size_t at, const char* lacks) {
      const char* in_text = normal_ == nullptr ? place + at : stretch_.data();
      throw DataError(fmt::format("{} {} byte {} of {} is not in the vocabulary", what,
                                  normal_ == nullptr ? "at" : "behind",
                                  base_ + (in_text - text_.data()), source_),
                      fmt::format("remove it from the text; this vocabulary lacks {}", lacks));
    };
    const std::optional<CharacterSymbols>& characters = tables_.file.characters;
    for (std::size_t at = 0; at < piece.size();) {
      const CodePoint c = first_code_point(piece.substr(at));
      const auto length = characters ? static_cast<std::size_t>(c.length) : 1;
      if (const auto byte = static_cast<unsigned char>(piece[at]);
          !characters && tables_.file.byte_ids[byte] < 0)
        refuse(fmt::format("byte 0x{:02X}", byte), at, "some of the 256 bytes");
      if (characters && !characters->ids.contains(c.value) &&
          !characters->has_bytes(piece.substr(at, length)))
        refuse("the character " + name_code_point(c.value), at,
               "a token for unknown characters (unk_token)");
      at += length;
    }
  }

  /// Records that the ids so far are those of the text up to `end`, a position in the text or in
  /// its normalised stretch.
  void mark(const char* end, bool behind_token) {
    std::size_t place = 0;
    if (normal_ == nullptr) {
      place = static_cast<std::size_t>(end - text_.data());
    } else {
      place = normal_->original_place(static_cast<std::size_t>(end - normal_->text().data()));
      if (place == NfcText::npos) return;
      place += static_cast<std::size_t>(stretch_.data() - text_.data());
    }
    if (tables_.single_words && word_before(text_, place)) return;
    // A text that is continued here begins like another one, with a blank or with an added one.
    const AddedBlank added = tables_.file.added_blank;
    const bool begins = added == AddedBlank::never || (added == AddedBlank::always && behind_token);
    if (!begins && !begins_with_blank(text_.substr(place))) return;
    good_place_ = place;
    good_ids_ = ids_.size();
  }

  const Tables& tables_;
  std::string_view source_;
  std::int64_t base_;
  std::string_view text_;
  bool more_;
  const BpeEncoding& how_;
  PieceCache& cache_;
  std::vector<std::int32_t>& ids_;
  std::size_t good_place_ = 0, good_ids_;
  const NfcText* normal_ = nullptr;  ///< normal form of stretch_ while it is encoded
  std::string_view stretch_;
};

BpeTokenizer BpeTokenizer::load(const std::string& path) {
  auto [text, fault] = read_capped_file(path, kMostTokenizerMiB);
  if (!fault.empty()) throw DataError(fmt::format("tokenizer '{}' {}", path, fault));
  return from_json(std::move(text), path);
}

BpeTokenizer BpeTokenizer::from_json(std::string json, const std::string& source) {
  TokenizerJson parts = parse_tokenizer_json(json, source);
  return BpeTokenizer(std::make_shared<const Tables>(std::move(json), std::move(parts)));
}

const std::string& BpeTokenizer::json() const {
  return tables_->json;
}

int BpeTokenizer::vocab_size() const {
  return static_cast<int>(tables_->file.bytes.size());
}

std::uint64_t BpeTokenizer::hash() const {
  return tables_->hash;
}

bool BpeTokenizer::has(std::int32_t id) const {
  return id >= 0 && id < vocab_size() && !tables_->file.bytes[static_cast<std::size_t>(id)].empty();
}

std::string_view BpeTokenizer::bytes_of(std::int32_t id) const {
  if (id < 0 || id >= vocab_size())
    throw DataError(fmt::format("token id {} outside the vocabulary of {}", id, vocab_size()));
  const std::string& bytes = tables_->file.bytes[static_cast<std::size_t>(id)];
  if (bytes.empty()) throw DataError(fmt::format("token id {} has no entry in the vocabulary", id));
  return bytes;
}

bool BpeTokenizer::is_special(std::int32_t id) const {
  return has(id) && tables_->special[static_cast<std::size_t>(id)];
}

std::optional<std::int32_t> BpeTokenizer::added_token(std::string_view content) const {
  for (const AddedToken& token : tables_->file.added)
    if (token.content == content) return token.id;
  return std::nullopt;
}

std::vector<std::string> BpeTokenizer::added_tokens() const {
  std::vector<std::string> all;
  for (const AddedToken& token : tables_->file.added) all.push_back(token.content);
  return all;
}

std::span<const std::int32_t> BpeTokenizer::prefix() const {
  return tables_->file.prefix;
}

std::span<const std::int32_t> BpeTokenizer::suffix() const {
  return tables_->file.suffix;
}

std::vector<std::int32_t> BpeTokenizer::encode(std::string_view text, PieceCache& cache,
                                               const BpeEncoding& how, std::string_view source,
                                               std::int64_t base) const {
  std::vector<std::int32_t> ids;
  if (how.around) ids.assign(prefix().begin(), prefix().end());
  encode_part(text, false, source, base, cache, ids, how);
  if (how.around) ids.insert(ids.end(), suffix().begin(), suffix().end());
  return ids;
}

std::size_t BpeTokenizer::encode_part(std::string_view text, bool more_follows,
                                      std::string_view source, std::int64_t base, PieceCache& cache,
                                      std::vector<std::int32_t>& ids,
                                      const BpeEncoding& how) const {
  text = whole_characters(text, more_follows, source, base);
  return Run(*tables_, text, source, base, more_follows, how, cache, ids).go();
}

std::string BpeTokenizer::decode(std::span<const std::int32_t> ids, bool with_special) const {
  std::string bytes;
  bool first = tables_->file.drops_first_blank;
  for (const std::int32_t id : ids) {
    const std::string_view entry = bytes_of(id);
    if (!with_special && is_special(id)) continue;
    for (const char c : entry)
      if (!first || c != ' ') bytes += c;
    first = false;
  }
  return bytes;
}

namespace {

class BpeVocabulary : public VocabularyModel {
 public:
  explicit BpeVocabulary(BpeTokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {
    const std::uint64_t h = fnv1a(tokenizer_.json());
    hash_ = h == 0 ? 1 : h;
  }
  VocabularyKind kind() const override { return VocabularyKind::bpe; }
  int size() const override { return tokenizer_.vocab_size(); }
  // The hash covers the whole file, not only its entries: other merges or splitters give other ids.
  std::uint64_t hash() const override { return hash_; }
  std::string to_json() const override { return tokenizer_.json(); }

  std::size_t encode_part(std::string_view text, bool more_follows, std::string_view source,
                          std::int64_t base, std::vector<std::int32_t>& ids) const override {
    const std::lock_guard lock(mutex_);
    return tokenizer_.encode_part(text, more_follows, source, base, cache_, ids);
  }
  Vocabulary::Encoded try_encode(std::string_view text) const override {
    Vocabulary::Encoded encoded;
    try {
      encode_part(text, false, "the text", 0, encoded.ids);
    } catch (const DataError& error) {
      encoded = {.ids = {}, .unknown = error.what()};
    }
    return encoded;
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    return tokenizer_.decode(ids);
  }
  std::string piece(std::int32_t id) const override { return std::string(tokenizer_.bytes_of(id)); }
  bool has(std::int32_t id) const override { return tokenizer_.has(id); }

  std::vector<std::int32_t> text_start() const override {
    return {tokenizer_.prefix().begin(), tokenizer_.prefix().end()};
  }
  std::optional<std::int32_t> end_of_text() const override {
    for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>"})
      if (const auto id = tokenizer_.added_token(name)) return id;
    return std::nullopt;
  }

 private:
  BpeTokenizer tokenizer_;
  std::uint64_t hash_;
  mutable std::mutex mutex_;  ///< guards cache_; locked once per part of a text
  mutable PieceCache cache_;
};

}  // namespace

SharedVocabularyModel bpe_vocabulary(std::string tokenizer_json, const std::string& source) {
  return std::make_shared<BpeVocabulary>(
      BpeTokenizer::from_json(std::move(tokenizer_json), source));
}

std::uint64_t hash_of_tokens(const Vocabulary& vocabulary) {
  if (vocabulary.kind() != VocabularyKind::bpe) return vocabulary.hash();
  return BpeTokenizer::from_json(vocabulary.to_json(), "the vocabulary").hash();
}

bool has_hash(const Vocabulary& vocabulary, std::uint64_t hash) {
  return vocabulary.hash() == hash || hash_of_tokens(vocabulary) == hash;
}

bool same_tokens(const Vocabulary& a, const Vocabulary& b) {
  return a.hash() == b.hash() || (a.kind() == b.kind() && hash_of_tokens(a) == hash_of_tokens(b));
}

}  // namespace choir
