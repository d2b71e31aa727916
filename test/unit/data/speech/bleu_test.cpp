#include "src/data/metrics/answer_scores.hpp"
#include "src/data/metrics/edit_distance.hpp"

#include <gtest/gtest.h>

#include "src/core/text.hpp"

namespace choir {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;  // hypothesis, reference

BleuCounts counts_of_corpus(const Pairs& pairs) {
  BleuCounts counts;
  for (const auto& [hypothesis, reference] : pairs) counts += bleu_counts(reference, hypothesis);
  return counts;
}

struct Known {
  Pairs pairs;
  double score;
};

// Scores of sacrebleu 2.6.
// The expected words are those of sacrebleu 2.6 and NeMo, which use Python's str.split().
TEST(Bleu, WordsAreSplitAtBlanksOfUnicode) {
  for (const char* blank : {"\u3000", "\u00a0", "\u2003", "\u2028", "\t", "\x1c", " \u0085 "}) {
    const std::string spaced = std::string("the cat") + blank + "sat on mat";
    EXPECT_DOUBLE_EQ(bleu_counts("the cat sat on mat", spaced).score(), 100) << blank;
    EXPECT_EQ(word_edits("the cat sat on mat", spaced).edits(), 0) << blank;
    EXPECT_TRUE(exact_match("the cat sat on mat", spaced)) << blank;
  }
  EXPECT_EQ(word_edits("the cat sat", "the cat\u200bsat").edits(), 2) << "no blank, as in Python";
}

// sacrebleu removes the blanks at the end before it joins words at "-\n".
TEST(Bleu, ADashAtTheEndStays) {
  EXPECT_EQ(bleu_tokens("one two-\n"), bleu_tokens("one two-"));
  EXPECT_EQ(bleu_tokens("one two-\nthree"), bleu_tokens("one twothree"));
  EXPECT_TRUE(bleu_tokens(" \n").empty());
}

TEST(Bleu, GivesKnownScores) {
  const std::string mat = "the cat sat on the mat";
  const std::vector<Known> known{
      {{{"m n o p r s t u v", "m n o p r s t u v"}}, 100},
      {{{"a b c", "a b c"}}, 0},
      {{{"a b d", "a b c"}}, 0},
      {{{mat, "the cat is on the mat"}, {"there is a dog", "there is a dog here"}},
       48.766770743757},
      {{{mat, "the cat is on the mat"}}, 37.991784282580},
      {{{"there is a dog", "there is a dog here"}}, 77.880078307141},
      {{{"the the the cat sat", mat}}, 34.983301252723},
      {{{"the the the the the the the", "the cat is on the mat"}}, 7.809849842301},
      {{{"a b x c d y e", "a b c d e f g"}}, 19.640732545026},
      {{{"b a d c f e", "a b c d e f"}}, 12.703318703865},
      {{{mat + " today indeed", mat}}, 68.037493331712},
      {{{"the cat sat on the", mat}}, 81.873075307798},
      {{{mat, mat}, {"", "hello"}}, 84.648172489061},
      {{{"", "a b c d"}}, 0},
      {{{"a b c d", ""}}, 0},
      {{{"", ""}}, 0},
      {{{"Hello, World!", "hello world"}}, 0},
  };
  for (const Known& one : known) {
    EXPECT_NEAR(counts_of_corpus(one.pairs).score(), one.score, 1e-10) << one.pairs.front().first;
  }
  EXPECT_NEAR(bleu_counts("hello", "hello there").sentence_score(), 50, 1e-10);
  EXPECT_NEAR(bleu_counts(mat, "the cat sat").sentence_score(), 36.787944117144, 1e-10);
  EXPECT_NEAR(bleu_counts("a b c", "a b c").sentence_score(), 100, 1e-10);
  EXPECT_NEAR(bleu_counts("a b c", "a b d").sentence_score(), 55.032120814910, 1e-10);
}

TEST(Bleu, CountsAddUpOverParts) {
  const BleuCounts counts = counts_of_corpus({{"the cat sat on the mat", "the cat is on the mat"},
                                              {"there is a dog", "there is a dog here"}});
  EXPECT_EQ(counts.correct, (std::array<std::int64_t, 4>{9, 6, 3, 1}));
  EXPECT_EQ(counts.total, (std::array<std::int64_t, 4>{10, 8, 6, 4}));
  EXPECT_NEAR(counts.brevity_penalty(), .904837418036, 1e-12);
}

TEST(Bleu, TokensAreThoseOfMteval13a) {
  const std::vector<std::pair<std::string, std::string>> known{
      {"Hello, world!", "Hello , world !"},
      {"It's 3.14, or 1,000?", "It's 3.14 , or 1,000 ?"},
      {"a-b 10-20 x-", "a-b 10 - 20 x-"},
      {"U.S.A. costs $5.", "U . S . A . costs $ 5 ."},
      {"x...y ...", "x . . . y . . ."},
      {"email@x.org 50% #1 a/b", "email @ x . org 50 % # 1 a / b"},
      {"9-year 'q'", "9 - year 'q'"}};
  for (const auto& [text, tokens] : known) EXPECT_EQ(join(bleu_tokens(text), " "), tokens);
}

TEST(Bleu, AnExactMatchForgivesBlanksAlone) {
  EXPECT_TRUE(exact_match("one two", "  one \t two\n"));
  EXPECT_FALSE(exact_match("one two", "one twO"));
  EXPECT_FALSE(exact_match("one two", "onetwo"));
}

}  // namespace
}  // namespace choir
