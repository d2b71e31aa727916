#include "src/data/vocabulary/vocabulary.hpp"

#include "src/data/vocabulary/utf8.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

// Table 3-7 of the Unicode standard (well-formed UTF-8) and the usual malformed cases.
TEST(Utf8, AcceptsWhatIsWellFormedAndNothingElse) {
  const std::pair<std::string, char32_t> good[] = {
      {std::string(1, '\0'), 0},     {"\x7F", 0x7F},           {"\xC2\x80", 0x80},
      {"\xDF\xBF", 0x7FF},           {"\xE0\xA0\x80", 0x800},  {"\xED\x9F\xBF", 0xD7FF},
      {"\xEE\x80\x80", 0xE000},      {"\xEF\xBF\xBF", 0xFFFF}, {"\xF0\x90\x80\x80", 0x10000},
      {"\xF4\x8F\xBF\xBF", 0x10FFFF}};
  for (const auto& [bytes, value] : good) {
    const CodePoint c = first_code_point(bytes);
    EXPECT_EQ(c.value, value);
    EXPECT_EQ(static_cast<std::size_t>(c.length), bytes.size());
    std::string back;
    append_utf8(back, value);
    EXPECT_EQ(back, bytes);
    for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
      const CodePoint part = first_code_point(std::string_view(bytes).substr(0, cut));
      EXPECT_TRUE(part.incomplete && part.length == 0);
    }
  }
  for (const char* bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xC3(", "\xE2\x82("}) {
    const CodePoint c = first_code_point(bad);
    EXPECT_TRUE(c.length == 0 && !c.incomplete) << bad;
  }
}

TEST(Characters, CharactersAreSortedCodePoints) {
  const Vocabulary t = Vocabulary::characters({U'b', U'\u00e9', U'a', U'b'});
  EXPECT_EQ(t.size(), 3);
  EXPECT_EQ(t.hash(), 0x9155ced0af6af427ull);  // FNV-1a computed by an independent program
  EXPECT_EQ(t.encode("b\u00e9a"), (std::vector<std::int32_t>{1, 2, 0}));
  EXPECT_EQ(t.decode(std::vector<std::int32_t>{2, 0}), "\u00e9a");
}

TEST(Characters, NamesWhatItDoesNotKnow) {
  const Vocabulary t = Vocabulary::characters({U'a', U'\u00e9'});
  EXPECT_DATA_ERROR(t.encode("\u00e9a\u00fc"), "'\u00fc' (U+00FC) at byte 3 of the text");
  EXPECT_DATA_ERROR(t.encode("a\n", "'x.txt'", 100), "U+000A at byte 101 of 'x.txt'");
  EXPECT_DATA_ERROR(t.encode("a\xFF"), "not UTF-8 at byte 1");
  EXPECT_DATA_ERROR(t.encode("a\xC3"), "not UTF-8 at byte 1");
  EXPECT_DATA_ERROR(t.decode(std::vector<std::int32_t>{2}),
                    "token id 2 outside the vocabulary of 2");
}

TEST(Characters, BytesTakeEverything) {
  const Vocabulary t = Vocabulary::bytes();
  EXPECT_EQ(t.size(), 256);
  EXPECT_EQ(t.encode("\xFF\x01"), (std::vector<std::int32_t>{255, 1}));
  EXPECT_EQ(t.decode(t.encode("\u00e9\xFF")), "\u00e9\xFF");
}

TEST(Characters, SurvivesItsJson) {
  const test::ScratchFolder folder;
  const Vocabulary chars =
      Vocabulary::characters({U'\n', U'"', U'\\', U'\0', U'\u00e9', U'\U0001F600'});
  for (const Vocabulary& t : {chars, Vocabulary::bytes()}) {
    t.save(folder / "vocab.json");
    const Vocabulary back = Vocabulary::load_beside_tokens(folder / "vocab.json");
    EXPECT_EQ(back.hash(), t.hash());
    EXPECT_EQ(back.to_json(), t.to_json());
    EXPECT_EQ(back.kind(), t.kind());
  }
  EXPECT_NE(chars.hash(), Vocabulary::bytes().hash());
}

TEST(Characters, RefusesDamagedJson) {
  const test::ScratchFolder folder;
  EXPECT_DATA_ERROR(Vocabulary::load_beside_tokens(folder / "vocab.json"),
                    "cannot open the vocabulary");
  EXPECT_DATA_ERROR(Vocabulary::from_json("{", "v"), "v:1:2: not valid JSON");
  EXPECT_DATA_ERROR(Vocabulary::from_json("{\"kind\": \"char\"}", "v"), "has no 'hash'");
  std::string json = Vocabulary::characters({U'a', U'b'}).to_json();
  json.replace(json.find("\"b\""), 3, "\"c\"");
  EXPECT_DATA_ERROR(Vocabulary::from_json(json, "v"), "is damaged");
  json.replace(json.find("\"c\""), 3, "\"ab\"");
  EXPECT_DATA_ERROR(Vocabulary::from_json(json, "v"), "not one character");
}

}  // namespace
}  // namespace choir
