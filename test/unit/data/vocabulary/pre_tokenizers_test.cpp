#include "src/data/vocabulary/pre_tokenizers.hpp"

#include <gtest/gtest.h>

#include "src/data/vocabulary/utf8.hpp"
#include "test/unit/data/vocabulary/golden_texts.hpp"

namespace choir {
namespace {

using Pieces = std::vector<std::string_view>;

Pieces pieces(std::vector<Splitter> splitters, std::string_view text) {
  return PreTokenizer(std::move(splitters)).pieces(text);
}

TEST(UnicodeTables, AreThoseOfUnicode16) {
  const std::vector<std::uint8_t> classes = unicode_classes();
  ASSERT_EQ(classes.size(), kUnicodeSize);
  std::array<int, 6> sizes{};
  for (const std::uint8_t c : classes)
    for (std::size_t bit = 0; bit < sizes.size(); ++bit) sizes[bit] += c >> bit & 1;
  EXPECT_EQ(sizes[0], 141028);  // letters
  EXPECT_EQ(sizes[1], 1911);    // numbers
  EXPECT_EQ(sizes[2], 25);      // blanks
  EXPECT_EQ(classes[0x10D4A] & (kLetter | kWord), kLetter | kWord) << "Garay is of Unicode 16";
  EXPECT_EQ(classes[0x180E], 0) << "a separator of vowels is no blank";
  EXPECT_EQ(classes[0x93F], kWord | kUpper | kLower) << "a sign of Devanagari is no letter";
  EXPECT_EQ(classes['A'] & (kUpper | kLower), kUpper);
  EXPECT_EQ(classes['a'] & (kUpper | kLower), kLower);
  EXPECT_EQ(classes[0x1C5] & (kUpper | kLower), kUpper) << "a titlecase letter";
  EXPECT_EQ(classes[0x65E5] & (kUpper | kLower), kUpper | kLower) << "a letter without case";
  EXPECT_EQ(classes[0xBD], kNumber) << "one half is a number, but no digit";
  EXPECT_TRUE(classes[0x301] & kJoins);
  EXPECT_TRUE(classes[0x1161] & kJoins) << "a vowel of Hangul";
  EXPECT_TRUE(classes[0x212B] & kChanges) << "Angstrom is a letter with a ring";
}

TEST(PreTokenizers, CutAsTheExpressionsDo) {
  for (const test::GoldenText& golden : test::golden_texts())
    for (const auto& [splitter, expected] : {std::pair{Splitter::gpt2, &golden.gpt2_pieces},
                                             std::pair{Splitter::llama3, &golden.llama3_pieces},
                                             std::pair{Splitter::qwen2, &golden.qwen2_pieces}}) {
      std::vector<std::size_t> lengths;
      for (const std::string_view piece : pieces({splitter}, golden.text))
        lengths.push_back(piece.size());
      EXPECT_EQ(lengths, *expected) << name_of(splitter) << ": " << golden.text;
    }
}

TEST(PreTokenizers, TakeContractionsAtTheEndAndNothingCutOff) {
  EXPECT_EQ(pieces({Splitter::gpt2}, "we'll"), (Pieces{"we", "'ll"}));
  EXPECT_EQ(pieces({Splitter::gpt2}, "we'l"), (Pieces{"we", "'", "l"}));
  EXPECT_EQ(pieces({Splitter::llama3}, "WE'L"), (Pieces{"WE", "'L"}));
  EXPECT_EQ(pieces({Splitter::llama3}, "I'VE\r\n"), (Pieces{"I", "'VE", "\r\n"}));
  EXPECT_EQ(pieces({Splitter::gpt2}, " "), (Pieces{" "}));
  EXPECT_EQ(pieces({Splitter::qwen2}, "a \n \n  b"), (Pieces{"a", " \n \n", " ", " b"}));
}

// The pieces are those of the expressions in Python's module regex.
TEST(PreTokenizers, CutInFrontOfCapitalLetters) {
  const auto tekken = [](std::string_view text) { return pieces({Splitter::tekken}, text); };
  const auto o200k = [](std::string_view text) { return pieces({Splitter::o200k}, text); };
  EXPECT_EQ(tekken("HTTPServer's 2024 DON'T"),
            (Pieces{"HTTPServer", "'s", " ", "2", "0", "2", "4", " DON", "'T"}));
  EXPECT_EQ(o200k("HTTPServer's 2024 DON'T"), (Pieces{"HTTPServer's", " ", "202", "4", " DON'T"}));
  for (const Splitter splitter : {Splitter::tekken, Splitter::o200k}) {
    const auto cut = [&](std::string_view text) { return pieces({splitter}, text); };
    EXPECT_EQ(cut("  x\n\n /// \n//a"), (Pieces{" ", " x", "\n\n", " ///", " \n", "//", "a"}));
    EXPECT_EQ(cut("aBcDE f\u00e9\u00c9\u00c0"),
              (Pieces{"a", "Bc", "DE", " f\u00e9", "\u00c9\u00c0"}));
    EXPECT_EQ(cut("\u65e5\u672cA\u0301b \u02b0X"),
              (Pieces{"\u65e5\u672cA\u0301b", " \u02b0", "X"}));
  }
}

// A small letter far behind decides that the capital letters in front of it are one piece with a
// letter without case.
TEST(PreTokenizers, WaitForTheEndOfCapitalLetters) {
  const std::string whole = "x \u05d3" + std::string(60, 'A') + "b and more text behind it";
  const PreTokenizer pre_tokenizer({Splitter::tekken});
  Pieces sure;
  pre_tokenizer.split_part(std::string_view(whole).substr(0, 50),
                           [&](std::string_view piece) { sure.push_back(piece); });
  EXPECT_EQ(sure, (Pieces{"x"}));
  EXPECT_EQ(pieces({Splitter::tekken}, whole)[1], whole.substr(1, 64));
}

TEST(PreTokenizers, CutWhatOthersHaveCut) {
  EXPECT_EQ(pieces({Splitter::digits, Splitter::gpt2}, "a  12 3.5"),
            (Pieces{"a", "  ", "1", "2", " ", "3", ".", "5"}));
  EXPECT_EQ(pieces({Splitter::contiguous_digits, Splitter::gpt2}, "a  12 3"),
            (Pieces{"a", "  ", "12", " ", "3"}));
  EXPECT_EQ(pieces({}, "a 1"), (Pieces{"a 1"}));
}

// A text that is given a few bytes at a time is split exactly as in one part.
TEST(PreTokenizers, CutPartsAsTheWhole) {
  std::string text;
  for (const test::GoldenText& golden : test::golden_texts()) text += golden.text;
  text += "  123   4 \n\n 'RE ";
  for (const std::vector<Splitter>& splitters :
       {std::vector{Splitter::gpt2}, std::vector{Splitter::llama3}, std::vector{Splitter::qwen2},
        std::vector{Splitter::digits, Splitter::gpt2},
        std::vector{Splitter::contiguous_digits, Splitter::gpt2}}) {
    const PreTokenizer pre_tokenizer(splitters);
    for (const std::size_t step : {1u, 5u, 33u}) {
      std::vector<std::string> parts;
      std::size_t done = 0;
      for (std::size_t end = step; end < text.size(); end += step) {
        const std::string_view window = std::string_view(text).substr(done, end - done);
        pre_tokenizer.split_part(window.substr(0, valid_utf8(window)), [&](std::string_view piece) {
          parts.emplace_back(piece);
          done += piece.size();
        });
      }
      EXPECT_GT(done, text.size() / 2) << "hardly anything was certain";
      pre_tokenizer.split(std::string_view(text).substr(done),
                          [&](std::string_view piece) { parts.emplace_back(piece); });
      const Pieces whole = pre_tokenizer.pieces(text);
      ASSERT_EQ(parts, std::vector<std::string>(whole.begin(), whole.end()));
    }
  }
}

TEST(PreTokenizers, KnowTheirExpressions) {
  for (const Splitter splitter : {Splitter::gpt2, Splitter::llama3, Splitter::qwen2})
    EXPECT_EQ(splitter_of_expression(expression_of(splitter)), splitter);
  EXPECT_EQ(expression_of(Splitter::digits), "");
  EXPECT_FALSE(splitter_of_expression(R"(\s+)").has_value());
}

}  // namespace
}  // namespace choir
