// Tests of numbers in words, of transcripts converted to spoken words, and of clauses of a book.
#include "src/data/corpora/spoken_text.hpp"
#include "choir/core/error.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

// Words of the Python package num2words 0.5, without its commas, hyphens and "and".
TEST(SpokenNumbers, InWords) {
  const std::vector<std::pair<std::int64_t, std::string>> golden{
      {0, "zero"},
      {7, "seven"},
      {13, "thirteen"},
      {20, "twenty"},
      {21, "twenty one"},
      {99, "ninety nine"},
      {100, "one hundred"},
      {101, "one hundred one"},
      {110, "one hundred ten"},
      {999, "nine hundred ninety nine"},
      {1000, "one thousand"},
      {1234567, "one million two hundred thirty four thousand five hundred sixty seven"},
      {2000005, "two million five"},
      {999999999999,
       "nine hundred ninety nine billion nine hundred ninety nine million nine hundred ninety nine "
       "thousand nine hundred ninety nine"}};
  for (const auto& [number, words] : golden) EXPECT_EQ(number_words(number), words);
  EXPECT_THROW(number_words(-1), DataError);
  EXPECT_THROW(number_words(1'000'000'000'000), DataError);
}

TEST(SpokenNumbers, TranscriptsAsTheyAreSaid) {
  const std::vector<std::pair<std::string, std::string>> golden{
      {"Activated.", "activated"},
      {" press 1 to switch, press 28.8!", "press one to switch press twenty eight point eight"},
      {"dial 500 or extension 1234, 8500",
       "dial five hundred or extension twelve thirty four "
       "eighty five hundred"},
      {"in 2000 and 1905 and 2014",
       "in two thousand and nineteen oh five and two thousand "
       "fourteen"},
      {"3D audio", "three d audio"},
      {"call 0800 55512345", "call zero eight zero zero five five five one two three four five"},
      {"it's the Waldo's 'quoted' \xe2\x80\x99tis", "it's the waldo's quoted tis"},
      {"press * or # (simple tone sound plays)", "press star or pound"},
      {"at [@]", "at"},
      {"[sound of monkeys screaming]", ""},
      {"<beep ascending>", ""},
      {"(10 seconds of silence)", ""},
      {"", ""},
      {"Call-Forward on No Answer...", "call forward on no answer"}};
  for (const auto& [written, said] : golden) EXPECT_EQ(spoken_words(written), said) << written;
}

TEST(SpokenClauses, AreShortAndOfCommonWords) {
  const std::string book =
      "And the king said, Go up (to) the hill; and the king went.\n"
      "And the king said: go up to the rare hill!\n"
      "go up to the hill\n";
  // Numbers of words: the 5, king 3, hill 3, and 3, go 3, up 3, to 3, said 2, went 1, rare 1.
  const auto clauses = spoken_clauses(book, {.words = 8, .shortest = 12, .longest = 18});
  EXPECT_EQ(clauses, (std::vector<std::string>{"and the king said", "go up to the hill"}));
  // The next word is the first of those that occur once, in alphabetical order.
  EXPECT_EQ(spoken_clauses(book, {.words = 9, .shortest = 18, .longest = 30}),
            (std::vector<std::string>{"go up to the rare hill"}));
  EXPECT_EQ(
      spoken_clauses(book, {.words = 10, .shortest = 17, .longest = 17}),
      (std::vector<std::string>{"and the king said", "go up to the hill", "and the king went"}));
  EXPECT_TRUE(spoken_clauses("", ClauseRule{}).empty());
}

}  // namespace
}  // namespace choir
