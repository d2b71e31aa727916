#include "src/data/vocabulary/vocabulary.hpp"

#include <choir_features.hpp>

#include "choir/core/error.hpp"
#include "src/core/text.hpp"
#include "src/data/vocabulary/vocabulary_model.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

using test::read_bytes;
using test::ScratchFolder;
using test::write_bytes;
using Ids = std::vector<std::int32_t>;

const std::vector<std::string> kSentences{"the king and his horse ride over a hill",
                                          "who goes there no one but me my lord",
                                          "we shall meet again when wind and rain have blown away",
                                          "quick jump by the fox's hole and the lazy dog",
                                          "the king shall ride again over the hill and away",
                                          "there is no king but the lord of the hill",
                                          "my horse and my dog have gone over the hill",
                                          "when the wind and the rain have gone we shall ride"};

TEST(Vocabulary, CharactersAreThoseOfTheText) {
  const Vocabulary vocabulary = train_vocabulary({.type = "char"}, {"b a", "ab\xc3\xa9"});
  EXPECT_EQ(vocabulary.kind(), VocabularyKind::character);
  EXPECT_EQ(vocabulary.size(), 4);  // blank a b é, in the order of code points
  EXPECT_EQ(vocabulary.try_encode("ab \xc3\xa9").ids, (Ids{1, 2, 0, 3}));
  EXPECT_EQ(vocabulary.decode(Ids{3, 0, 2}), "\xc3\xa9 b");
  EXPECT_EQ(vocabulary.piece(0), " ");
  EXPECT_EQ(vocabulary.hash(), Vocabulary::characters({U' ', U'a', U'b', U'\u00e9'}).hash());
}

TEST(Vocabulary, CharactersOutsideAreNamed) {
  const Vocabulary vocabulary = train_vocabulary({.type = "char"}, {"abc"});
  const auto bad = vocabulary.try_encode("a?b\xff");
  EXPECT_EQ(bad.ids, (Ids{0, 1}));
  EXPECT_EQ(bad.unknown, "'?' (U+003F)");
  EXPECT_EQ(vocabulary.try_encode("\xff").unknown, "invalid UTF-8 at byte 0");
  EXPECT_EQ(vocabulary.try_encode("cab").unknown, "");
  EXPECT_THROW(vocabulary.decode(Ids{3}), DataError);
}

TEST(Vocabulary, OfTooManyCharactersTheCommonestStay) {
  const Vocabulary vocabulary =
      train_vocabulary({.type = "char", .vocab_size = 2}, {"abbccc", "c"});
  EXPECT_EQ(vocabulary.size(), 2);
  EXPECT_EQ(vocabulary.try_encode("bc").ids, (Ids{0, 1}));
  EXPECT_EQ(vocabulary.try_encode("a").unknown, "'a' (U+0061)");
}

TEST(Vocabulary, WhatCannotBeMadeIsRefused) {
  EXPECT_THROW(train_vocabulary({.type = "word"}, kSentences), DeckError);
  EXPECT_THROW(train_vocabulary({.type = "bpe"}, kSentences), DeckError);  // no size
  EXPECT_THROW(train_vocabulary({.type = "char"}, {"", " "}), DataError);
  EXPECT_DATA_ERROR(train_vocabulary({.type = "char"}, {"a\xff"}), "not UTF-8");
}

TEST(Vocabulary, FilesComeBack) {
  const ScratchFolder folder;
  const Vocabulary vocabulary = train_vocabulary({.type = "char"}, kSentences);
  vocabulary.save(folder / "char.json");
  const Vocabulary again = Vocabulary::load(folder / "char.json");
  EXPECT_EQ(again.hash(), vocabulary.hash());
  EXPECT_EQ(again.to_json(), vocabulary.to_json());
  write_bytes(folder / "empty.json", "");
  EXPECT_DATA_ERROR(Vocabulary::load(folder / "empty.json"), "is empty");
  write_bytes(folder / "broken.json", "{\"kind\": ");
  EXPECT_DATA_ERROR(Vocabulary::load(folder / "broken.json"), "not valid JSON");
  EXPECT_THROW(Vocabulary::load(folder / "none.json"), DataError);
}

TEST(Vocabulary, Base64IsThatOfRfc4648) {
  const std::vector<std::pair<std::string, std::string>> vectors{{"", ""},
                                                                 {"f", "Zg=="},
                                                                 {"fo", "Zm8="},
                                                                 {"foo", "Zm9v"},
                                                                 {"foob", "Zm9vYg=="},
                                                                 {"fooba", "Zm9vYmE="},
                                                                 {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : vectors) {
    EXPECT_EQ(to_base64(bytes), text);
    std::string back = "x";
    EXPECT_TRUE(from_base64(text, back));
    EXPECT_EQ(back, bytes);
  }
  std::string ignored;
  for (const char* bad : {"Zg=", "Z*==", "Zg==Zg==", "===="})
    EXPECT_FALSE(from_base64(bad, ignored)) << bad;
}

#ifdef CHOIR_HAVE_SENTENCEPIECE

// Ids of models that the Python package sentencepiece 0.2.3 trained on the same sentences with the
// same options.
struct Golden {
  const char* text;
  Ids bpe, unigram;
};
const std::vector<Golden> kGolden{{"the king and his horse",
                                   {3, 20, 38, 6, 31, 11, 15, 33, 5, 16, 33, 21},
                                   {4, 1, 18, 7, 14, 5, 2, 9, 1, 47, 30, 6, 28, 10, 6, 3}},
                                  {"we shall meet again",
                                   {8, 21, 20, 33, 22, 23, 7, 12, 21, 21, 29, 4, 31, 18},
                                   {17, 3, 1, 6, 13, 24, 34, 3, 25, 5, 14, 8, 7}},
                                  {"a quick fox's hill",
                                   {4, 20, 45, 39, 26, 42, 38, 20, 40, 25, 46, 41, 33, 19},
                                   {5, 1, 41, 20, 30, 39, 18, 1, 31, 16, 44, 38, 6, 21}},
                                  {"ride  over", {14, 26, 28, 21, 13, 10, 30}, {26, 15, 12, 10}}};

TEST(Vocabulary, SubwordsAreThoseOfSentencePiece) {
  for (const std::string type : {"bpe", "unigram"}) {
    const Vocabulary vocabulary = train_vocabulary({.type = type, .vocab_size = 48}, kSentences);
    EXPECT_EQ(vocabulary.kind(), VocabularyKind::sentencepiece);
    EXPECT_EQ(vocabulary.size(), 48);
    for (const Golden& golden : kGolden) {
      const auto encoded = vocabulary.try_encode(golden.text);
      EXPECT_EQ(encoded.ids, type == "bpe" ? golden.bpe : golden.unigram) << golden.text;
      EXPECT_EQ(encoded.unknown, "");
      std::string joined;
      for (const std::int32_t id : encoded.ids) joined += vocabulary.piece(id);
      const std::string decoded = vocabulary.decode(encoded.ids);
      EXPECT_EQ(" " + decoded, joined);
      EXPECT_EQ(decoded, golden.text == std::string("ride  over") ? "ride over" : golden.text);
    }
    const auto bad = vocabulary.try_encode("the 9 kings");
    EXPECT_NE(bad.unknown.find('9'), std::string::npos) << bad.unknown;
    EXPECT_THROW(vocabulary.decode(Ids{48}), DataError);
    EXPECT_THROW(vocabulary.piece(-1), DataError);
  }
}

TEST(Vocabulary, SubwordsAreTheSameBytesEveryTime) {
  for (const std::string type : {"bpe", "unigram"}) {
    const VocabularyTraining training{.type = type, .vocab_size = 48};
    EXPECT_EQ(train_vocabulary(training, kSentences).to_json(),
              train_vocabulary(training, kSentences).to_json());
  }
}

TEST(Vocabulary, SubwordFilesComeBack) {
  const ScratchFolder folder;
  const Vocabulary vocabulary = train_vocabulary({.type = "bpe", .vocab_size = 48}, kSentences);
  vocabulary.save(folder / "bpe.json");
  vocabulary.save(folder / "bpe.model");
  for (const char* name : {"bpe.json", "bpe.model"}) {
    const Vocabulary again = Vocabulary::load(folder / name);
    EXPECT_EQ(again.hash(), vocabulary.hash()) << name;
    EXPECT_EQ(again.to_json(), vocabulary.to_json()) << name;
    EXPECT_EQ(again.try_encode(kGolden[0].text).ids, kGolden[0].bpe) << name;
  }
  std::string json = read_bytes(folder / "bpe.json");
  const std::size_t model = json.find("\"model\": \"") + 50;
  json[model] = json[model] == 'A' ? 'B' : 'A';
  write_bytes(folder / "bpe.json", json);
  EXPECT_DATA_ERROR(Vocabulary::load(folder / "bpe.json"), "does not fit its hash");
  write_bytes(folder / "noise.model", "this is no model");
  EXPECT_DATA_ERROR(Vocabulary::load(folder / "noise.model"), "not a tokenizer");
}

// Found by fuzzing: SentencePiece throws for this piece, whereas it returns other errors.
TEST(Vocabulary, APieceWithAZeroInItIsRefused) {
  const ScratchFolder folder;
  train_vocabulary({.type = "unigram", .vocab_size = 48}, kSentences).save(folder / "zero.model");
  std::string model = read_bytes(folder / "zero.model");
  const std::size_t piece = model.find("\x0a\x01h\x15");  // its text, of one byte, and its score
  ASSERT_NE(piece, model.npos);
  model[piece + 2] = '\0';
  write_bytes(folder / "zero.model", model);
  EXPECT_DATA_ERROR(Vocabulary::load(folder / "zero.model"), "not a tokenizer");
}

TEST(Vocabulary, SubwordsOfASizeThatDoesNotFitAreRefused) {
  for (const std::string type : {"bpe", "unigram"})
    for (const int size : {5, 5000})
      EXPECT_THROW(train_vocabulary({.type = type, .vocab_size = size}, kSentences), DeckError)
          << type << " " << size;
}

#endif

}  // namespace
}  // namespace choir
