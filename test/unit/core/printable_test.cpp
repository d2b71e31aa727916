// Tests of text that is printed on a terminal.
#include "src/core/output.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/core/json_value.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

TEST(Printable, ControlSequencesBecomeVisible) {
  EXPECT_EQ(printable("\x1b]0;title\a"), "\\u001b]0;title\\u0007");
  EXPECT_EQ(printable(std::string_view("a\0b\x7f", 4)), "a\\u0000b\\u007f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\u009b2J");
  EXPECT_EQ(printable("\x9b"
                      "2J"),
            "\\x9b2J");
  EXPECT_EQ(printable("50 %\rdone"), "50 %\\rdone");
}

TEST(Printable, BidirectionalOverridesBecomeVisible) {
  EXPECT_EQ(printable("a\u202eb\u2066c\u2069d\u2028e"), "a\\u202eb\\u2066c\\u2069d\\u2028e");
}

TEST(Printable, LettersOfAllScriptsStay) {
  const std::string text = "é 漢字 \U0001F600 אב \u200d ~ \\n \"quoted\"";
  EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable_name(text), text);
}

TEST(Printable, LineEndsAndTabsStayInATextAndNotInAName) {
  EXPECT_EQ(printable("a\tb\nc\r\n"), "a\tb\nc\\r\n");
  EXPECT_EQ(printable_name("a\tb\nc\r\n"), "a\\tb\\nc\\r\\n");
}

TEST(Printable, BytesThatAreNotUtf8BecomeVisible) {
  EXPECT_EQ(printable("\xc0\x80"), "\\xc0\\x80");                    // an overlong zero
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond U+10FFFF
  EXPECT_EQ(printable("caf\xc3"), "caf\\xc3");                       // cut
  EXPECT_EQ(printable("\xe2\x80z"), "\\xe2\\x80z");
}

TEST(Printable, JsonKeepsItsMeaning) {
  const nlohmann::json value = {{"na\u009bme\x1b", "a\u202e\x7f\\u0041\n"}};
  const std::string text = dumped(value);
  const std::string shown = printable(text);
  EXPECT_NE(shown, text);
  EXPECT_EQ(parsed_json(shown), value);
}

TEST(Printable, NoPartOfAMessageBeginsALineOfItsOwn) {
  EXPECT_EQ(printable_message("no 'a\n[E] b'\n  -> hint"), "no 'a\n  [E] b'\n  -> hint");
}

/// The lines of a text that are wider than `columns`.
std::vector<std::string> too_wide(const std::string& text, std::size_t columns) {
  std::vector<std::string> lines = split(text, '\n');
  std::erase_if(lines, [&](const std::string& line) { return line.size() <= columns; });
  return lines;
}

TEST(FittedText, AParagraphIsBrokenAnewAndKeepsItsIndent) {
  const std::string words =
      "the limit of a rank is what the node has, divided by its ranks, less what the system needs "
      "for itself, and a deck that needs more is refused before anything is allocated on any rank";
  const std::string made = wrap(words, 100, 2);
  EXPECT_EQ(fitted(made, 100), made);
  EXPECT_EQ(fitted(made, 0), made);
  EXPECT_EQ(fitted(made, 72), wrap(words, 72, 2));
  EXPECT_EQ(fitted("  memory      " + words + "\n", 72),
            "  memory      " + wrap(words, 72, 14).substr(14));
  EXPECT_EQ(fitted("choir: " + words + "\n", 72),
            "choir: the limit of a rank is what the node has, divided by its ranks,\n"
            "  less what the system needs for itself, and a deck that needs more is\n"
            "  refused before anything is allocated on any rank\n");
}

TEST(FittedText, ALineThatIsFullByChanceEndsItsText) {
  EXPECT_EQ(
      fitted("memory: 614.2 KiB for rank 0 of dp=32 tp=1 pp=1 cp=1, of 38.2 GiB that one A100 "
             "40 GB has for it\nrandom tokens, vocabulary of 128,256\n",
             80),
      "memory: 614.2 KiB for rank 0 of dp=32 tp=1 pp=1 cp=1, of 38.2 GiB that one A100\n"
      "  40 GB has for it\nrandom tokens, vocabulary of 128,256\n");
  EXPECT_EQ(fitted("  predicted step: 20.47 s, 102,450 tokens/s on all of the ranks (2.4 % exposed "
                   "messages, bubble 0.0 %)\n  longest messages: 512 x 1 MiB\n",
                   80),
            "  predicted step: 20.47 s, 102,450 tokens/s on all of the ranks (2.4 % exposed\n"
            "  messages, bubble 0.0 %)\n  longest messages: 512 x 1 MiB\n");
  EXPECT_EQ(
      fitted("  record      the run has its log, its metrics and its checkpoints in this folder "
             "(checkpoints/)\n              /tmp/run/start.txt: every key\n",
             80),
      "  record      the run has its log, its metrics and its checkpoints in this\n"
      "              folder (checkpoints/)\n              /tmp/run/start.txt: every key\n");
}

TEST(FittedText, RowsOfATableAreCutAtTheSameColumn) {
  const std::string table =
      "# name             shape              rate       error   allowed\n"
      "  layernorm+add    [768, 128]   11.24 GB/s     5.5e-08   1.3e-06      VALID\n"
      "  gelu_forward     [768, 512]    3.14 GB/s     3.8e-08   1.0e-06      VALID\n";
  EXPECT_EQ(fitted(table, 75), table);
  EXPECT_EQ(fitted(table, 71),
            "# name           shape             rate    error  allowed\n"
            "  layernorm+add  [768, 128]  11.24 GB/s  5.5e-08  1.3e-06  VALID\n"
            "  gelu_forward   [768, 512]   3.14 GB/s  3.8e-08  1.0e-06  VALID\n")
      << "blanks between columns go first";
  EXPECT_EQ(fitted(table, 62),
            "# name          shape            rate   error allowed\n"
            "  layernorm+add [768, 128] 11.24 GB/s 5.5e-08 1.3e-06 VALID\n"
            "  gelu_forward  [768, 512]  3.14 GB/s 3.8e-08 1.0e-06 VALID\n")
      << "then also the second of two";
  EXPECT_EQ(fitted(table, 55),
            "# name           shape             rate    error\n"
            "  layernorm+add  [768, 128]  11.24 GB/s  5.5e-08  VALID\n"
            "  gelu_forward   [768, 512]   3.14 GB/s  3.8e-08  VALID\n"
            "  (too wide for this terminal, shown by `| cat`:\n  allowed)\n")
      << "then columns from the right, except the verdict";
  EXPECT_EQ(fitted("  layernorm+add    [768, 128]   11.24 GB/s     5.5e-08   1.3e-06      VALID\n"
                   "  gelu_forward     [768, 512]    3.14 GB/s     3.8e-08   1.0e-06      VALID\n",
                   55),
            "  layernorm+add  [768, 128]  11.24 GB/s  5.5e-08\n"
            "      1.3e-06  VALID\n"
            "  gelu_forward   [768, 512]   3.14 GB/s  3.8e-08\n"
            "      1.0e-06  VALID\n")
      << "rows without names continue below";
}

TEST(FittedText, TheTextOfTheLastColumnIsBrokenInsideIt) {
  EXPECT_EQ(
      fitted(
          "OK       ranks          1 rank on 1 host\n"
          "WARNING  shared memory  18 segments of a library are left over from ranks that ended\n"
          "                        -> before another job starts, remove these files of the node\n"
          "OK       training       a tiny model trains\n",
          60),
      "OK       ranks          1 rank on 1 host\n"
      "WARNING  shared memory  18 segments of a library are left\n"
      "                        over from ranks that ended\n"
      "                        -> before another job starts, remove\n"
      "                           these files of the node\n"
      "OK       training       a tiny model trains\n");
}

TEST(FittedText, ACellOfSeveralWordsStaysInItsColumn) {
  EXPECT_EQ(fitted("   #  layout      zero sp  recompute   micro x accum       memory   bubble\n"
                   "   1  dp=8 tp=1   0    no  none            6 x 1     26 MiB  <1 %   0.0 %\n"
                   "      every rank holds everything, and nothing else than gradients is sent\n"
                   "   2  dp=4 tp=2   0    yes none           12 x 1     20 MiB  <1 %   0.0 %\n",
                   56),
            "   #  layout     zero sp  recompute  micro x accum\n"
            "   1  dp=8 tp=1  0    no  none           6 x 1\n"
            "      every rank holds everything, and nothing else than\n"
            "      gradients is sent\n"
            "   2  dp=4 tp=2  0    yes none          12 x 1\n"
            "  (too wide for this terminal, shown by `| cat`: memory,\n"
            "  bubble)\n");
}

TEST(FittedText, ACommandCanStillBeCopied) {
  const std::string command =
      "  type        jobs/launch -n 8 build/choir train inputs/debug.json parallel.tensor=2 "
      "'data.train=[\"a long name.txt\"]'";
  EXPECT_EQ(fitted(command, 60),
            "  type        jobs/launch -n 8 build/choir train \\\n"
            "              inputs/debug.json parallel.tensor=2 \\\n"
            "              'data.train=[\"a long name.txt\"]'");
}

TEST(FittedText, ProgramsGetTheirLinesWhole) {
  const std::string json =
      "{\"name\": \"" + std::string(40, 'a') + " " + std::string(40, 'b') + "\"}\n";
  EXPECT_EQ(fitted(json, 60), json);
  const std::string path = std::string(90, '/') + "\n";
  EXPECT_EQ(fitted(path, 60), path) << "a word is never divided";
}

TEST(FittedText, LettersOfSeveralBytesCountOnce) {
  std::string umlauts, words;
  for (int i = 0; i < 20; ++i) umlauts += "\xc3\xa4\xc3\xb6 ", words += "ao ";
  EXPECT_EQ(split(fitted(umlauts, 60), '\n').size(), split(fitted(words, 60), '\n').size());
  EXPECT_TRUE(too_wide(fitted(words + words + words, 60), 60).empty());
}

}  // namespace
}  // namespace choir
