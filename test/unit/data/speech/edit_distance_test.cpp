#include "src/data/metrics/edit_distance.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace choir {
namespace {

struct Pair {
  const char *reference, *hypothesis;
  int word_edits, words, character_edits, characters;
};
/// Edits and lengths of jiwer 4.0.
const Pair kPairs[] = {
    {"the cat sat on the mat", "the cat sat on mat", 1, 6, 4, 22},
    {"hello world", "hello there big world", 2, 2, 10, 11},
    {"one two three four", "two three for five", 3, 4, 10, 18},
    {"a b c d", "a x c", 2, 4, 3, 7},
    {"same words here", "same words here", 0, 3, 0, 15},
    {"über straße ñandú", "uber strasse ñandú", 2, 3, 3, 17},
    {"speech recognition is fun", "peach wreck a nice is fan", 5, 4, 11, 25},
};

TEST(EditDistance, AgreesWithJiwer) {
  EditCounts words, characters;
  for (const Pair& p : kPairs) {
    SCOPED_TRACE(p.reference);
    const EditCounts w = word_edits(p.reference, p.hypothesis),
                     c = character_edits(p.reference, p.hypothesis);
    EXPECT_EQ(w.edits(), p.word_edits);
    EXPECT_EQ(w.reference(), p.words);
    EXPECT_EQ(c.edits(), p.character_edits);
    EXPECT_EQ(c.reference(), p.characters);
    words += w, characters += c;
  }
  EXPECT_DOUBLE_EQ(words.rate(), 0.5769230769230769);
  EXPECT_DOUBLE_EQ(characters.rate(), 0.3565217391304348);
  EXPECT_EQ(words.utterances, 7);
  EXPECT_EQ(words.exact, 1);
}

// Cases with only one shortest alignment. The counts are those of jiwer 4.0.
TEST(EditDistance, KindsOfEdits) {
  const EditCounts w = word_edits("a b c d", "a x c");
  EXPECT_EQ(w, (EditCounts{.deletions = 1, .substitutions = 1, .correct = 2, .utterances = 1}));
  EXPECT_EQ(word_edits("hello world", "hello there big world"),
            (EditCounts{.insertions = 2, .correct = 2, .utterances = 1}));
  EXPECT_EQ(character_edits("über straße ñandú", "uber strasse ñandú"),
            (EditCounts{.insertions = 1, .substitutions = 2, .correct = 15, .utterances = 1}));
  // Three alignments of "a b" with "b a" have two edits; the one with substitutions is taken.
  EXPECT_EQ(word_edits("a b", "b a"), (EditCounts{.substitutions = 2, .utterances = 1}));
}

TEST(EditDistance, EmptyTexts) {
  EXPECT_EQ(word_edits("", ""), (EditCounts{.utterances = 1, .exact = 1}));
  EXPECT_EQ(word_edits(" \t\n", "a b"), (EditCounts{.insertions = 2, .utterances = 1}));
  EXPECT_EQ(word_edits("a  b\n", ""), (EditCounts{.deletions = 2, .utterances = 1}));
  EXPECT_EQ(word_edits("", "").rate(), 0);
  EXPECT_TRUE(std::isinf(word_edits("", "a").rate()));
  EXPECT_EQ(EditCounts{}.rate(), 0);
}

TEST(EditDistance, WhiteSpaceDoesNotCountAndBadBytesDo) {
  EXPECT_EQ(character_edits(" a  b ", "a b").edits(), 0);
  EXPECT_EQ(character_edits("a b", "a b").reference(), 3);
  EXPECT_EQ(character_edits("a\xff", "a").deletions, 1);
  EXPECT_EQ(character_edits("\xff", "\xff").edits(), 0);
  EXPECT_EQ(character_edits("\xff", "ÿ").substitutions, 1);
}

/// The recursive definition, without memoization.
std::int64_t distance(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  if (a.empty() || b.empty()) return static_cast<std::int64_t>(a.size() + b.size());
  const std::int64_t both = distance(a.subspan(1), b.subspan(1)) + (a.front() == b.front() ? 0 : 1);
  return std::min({both, distance(a.subspan(1), b) + 1, distance(a, b.subspan(1)) + 1});
}

TEST(EditDistance, IsTheShortestAndItsCountsAddUp) {
  std::uint32_t state = 1;
  const auto draw = [&state](std::uint32_t limit) {
    state = state * 1664525u + 1013904223u;
    return static_cast<std::int32_t>((state >> 16) % limit);
  };
  for (int n = 0; n < 200; ++n) {
    std::vector<std::int32_t> a(static_cast<std::size_t>(draw(7))),
        b(static_cast<std::size_t>(draw(7)));
    for (auto& x : a) x = draw(3);
    for (auto& x : b) x = draw(3);
    const EditCounts counts = edit_counts(a, b);
    EXPECT_EQ(counts.edits(), distance(a, b));
    EXPECT_EQ(counts.reference(), static_cast<std::int64_t>(a.size()));
    EXPECT_EQ(counts.correct + counts.substitutions + counts.insertions,
              static_cast<std::int64_t>(b.size()));
  }
}

TEST(EditDistance, Line) {
  EXPECT_EQ(to_string(word_edits("a b c d", "a x c"), "words"),
            "50.00 % (0 insertions, 1 deletion, 1 substitution, 4 words)");
}

}  // namespace
}  // namespace choir
