#include "src/data/sources/text_source.hpp"

#include <cstdlib>
#include <filesystem>

#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

using test::ScratchFolder;
using test::write_bytes;

struct Rows {
  std::vector<std::string> texts;
  DamagedRows damaged;
};

Rows read_all(const std::string& path, const TextSourceOptions& options = {}) {
  const TextSource source = TextSource::open({path}, options);
  Rows rows;
  for (std::size_t unit = 0; unit < source.units().size(); ++unit)
    source.read(
        unit, [&](std::string_view text, std::int64_t) { rows.texts.emplace_back(text); },
        rows.damaged);
  return rows;
}

using Texts = std::vector<std::string>;

/// Runs a packer of Debian's gzip or zstd, which this test needs.
void pack(const std::string& command) {
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
}

/// A tar of files, written by hand so that names may be anything.
std::string tar_of(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string tar;
  for (const auto& [name, bytes] : members) {
    std::string head(512, '\0');
    name.copy(head.data(), 100);
    fmt::format("0000644\0").copy(head.data() + 100, 7);
    fmt::format("{:011o}", bytes.size()).copy(head.data() + 124, 11);
    std::string(8, ' ').copy(head.data() + 148, 8);
    head[156] = '0';
    std::string("ustar\00000", 8).copy(head.data() + 257, 8);
    unsigned sum = 0;
    for (const char c : head) sum += static_cast<unsigned char>(c);
    fmt::format("{:06o}", sum).copy(head.data() + 148, 6);
    head[154] = '\0';
    tar += head + bytes + std::string((512 - bytes.size() % 512) % 512, '\0');
  }
  return tar + std::string(1024, '\0');
}

/// ASCII in units of several bytes.
std::string wide(std::string_view text, std::size_t width, bool big) {
  std::string bytes;
  for (const char c : text) {
    std::string unit(width, '\0');
    (big ? unit.back() : unit.front()) = c;
    bytes += unit;
  }
  return bytes;
}

// The cure must fit the kind: iconv, for example, would make text of an array.
TEST(TextSource, FilesOfOtherKindsAreNotPlainText) {
  const ScratchFolder folder;
  const struct {
    std::string name, bytes, kind, cure;
  } kinds[] = {
      {"t.txt", std::string("\x1f\x8b\x08", 3), "compressed by gzip", "gunzip"},
      {"t.npy", "\x93NUMPY", "an array of NumPy", "tofile"},
      {"t.dat", "PAR1", "a Parquet file", ".parquet"},
      {"t.txt",
       std::string("\xff\xfe"
                   "a\0",
                   4),
       "text in UTF-16", "iconv -f utf-16"},
      {"t.txt", std::string("\xff\xfe\0\0a\0\0\0", 8), "text in UTF-32", "iconv -f utf-32"},
      {"t.txt", wide("one two\nthree\n", 2, false), "text in utf-16le without",
       "iconv -f utf-16le"},
      {"t.txt", wide("one two\nthree\n", 2, true), "text in utf-16be without", "iconv -f utf-16be"},
      {"t.txt", wide("one two\nthree\n", 4, false), "text in utf-32le without",
       "iconv -f utf-32le"},
      {"t.txt", std::string("a\0b", 3), "binary (byte 1 is 0)", ".bin"},
      {"t.txt", wide("\1\2\3\4\5\6\7 \13 ", 2, false), "binary (byte 1 is 0)", "16 or 32 bits"},
      {"t.arrow", std::string("\xff\xff\xff\xff\x70\1\0\0", 8), "a stream of Arrow", "Parquet"},
      {"t.pkl", "\x80\x04\x95", "a pickle of Python", "tofile"},
      {"t.docx", "PK\x03\x04", "a zip archive", ".docx is saved as plain text"},
      {"t.txt", "{\\rtf1\\ansi a}", "a document of a word processor", "plain text"},
      {"t.csv", "id,\"text\"\r\n1,a\r\n", "a table with the column \"text\"", "to_json"},
      {"t.txt", "text\tlabel\na\t1\n", "a table with the column \"text\"", "sep='\\t'"},
      {"t.json", "{\"data\": [{\"text\": \"a\"}]}", "JSON", ".jsonl"},
      {"t.json", " [{\"text\": \"a\"}]", "one list of JSON", ".jsonl"},
      {"t.txt", "{\"text\": \"a\"}\n", "JSON lines", ".jsonl"},
      {"t.csv", "id,review\n1,\"a, and\nb\"\n", "a table, not plain text", "data.text_field"},
      {"t.tsv", "1\ta\n2\tb", "a table, not plain text", "--text-field"},
      {"t.txt", "WARC/1.0\r\nWARC-Type: response\r\n", "an archive of web pages", "trafilatura"},
      {"t.ps", "%!PS-Adobe-3.0\n", "a PostScript document", "ps2ascii"},
  };
  for (const auto& one : kinds) {
    write_bytes(folder / one.name, one.bytes);
    try {
      TextSource::open({folder / one.name}, {});
      ADD_FAILURE() << one.kind;
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find(one.kind), std::string::npos) << error.what();
      EXPECT_NE(error.hint().find(one.cure), std::string::npos) << error.hint();
    }
  }
  write_bytes(folder / "list.txt", "text, he said\nand more\n");
  EXPECT_EQ(TextSource::open({folder / "list.txt"}, {}).files().size(), 1u) << "no table";
  write_bytes(folder / "code.txt", "{\"a\": 1}\n{not JSON}\n[x]\n");
  EXPECT_EQ(TextSource::open({folder / "code.txt"}, {}).files().size(), 1u);
}

// Texts with marks are trained as they are, because somebody may want a model of HTML, but a note
// names their kind.
TEST(TextSource, TextsWithMarksAreReadWithANote) {
  const ScratchFolder folder;
  std::string rows, ragged, prose, log;
  for (int i = 0; i < 12; ++i) {
    rows += fmt::format("{},word,\"a, \"\"b\"\", c\"\n", i);
    ragged += fmt::format("{},word{}\n", i, i == 7 ? "" : ",x");
    prose += "Come, said he, and came\n";
    log += "2026-11-30 04:00:00,123 ready\n";
  }
  const struct {
    std::string bytes, kind, cure;
  } texts[] = {
      {"\n<!doctype HTML><p>a", "is a page of HTML", "pandoc -f html -t plain"},
      {"<html lang=en>a", "is a page of HTML", "pandoc"},
      {"\xEF\xBB\xBF<?xml version=\"1.0\"?><a>b</a>", "is XML", "itertext()"},
      {"<mediawiki xml:lang=\"de\"><page>", "is a dump of MediaWiki", "wikiextractor --json"},
      {"<svg xmlns=\"x\"></svg>", "is XML", "itertext()"},
      {rows, "is a table", "data.text_field"},
      {"{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n", "is JSON lines", ".jsonl"},
      {"{\n  \"cells\": []\n}\n", "is JSON", ".jsonl"},
      {"<b>Bold</b> words begin this text.\n", "", ""},
      {"<p>A paragraph\n", "", ""},
      {"<|user|> {\"a\"} said\n", "", ""},
      {"{a, b} is a set, [c] a list\n", "", ""},
      {"# Title\n\n| a | b |\n|---|---|\n| 1 | 2 |\n", "", ""},
      {"\\documentclass{article}\n\\begin{document}\na & b \\\\\n", "", ""},
      {"1\n00:00:01,000 --> 00:00:02,000\nHello, all, of you\n\n", "", ""},
      {"From a@b Mon Nov 30\nSubject: a, b\n\nHello\n", "", ""},
      {ragged, "", ""},
      {prose, "", ""},
      {log, "", ""},
  };
  for (const auto& one : texts) {
    write_bytes(folder / "t.txt", one.bytes);
    const TextSource source = TextSource::open({folder / "t.txt"}, {});
    ASSERT_EQ(source.notes().size(), one.kind.empty() ? 0u : 1u) << one.bytes;
    if (one.kind.empty()) continue;
    EXPECT_NE(source.notes()[0].find("t.txt' " + one.kind + ", all of"), std::string::npos)
        << source.notes()[0];
    EXPECT_NE(source.notes()[0].find(one.cure), std::string::npos) << source.notes()[0];
  }
  write_bytes(folder / "a.html", "<html>");
  write_bytes(folder / "b.html", "<html>");
  const TextSource both = TextSource::open({folder / "a.html", folder / "b.html"}, {});
  ASSERT_EQ(both.notes().size(), 1u);
  EXPECT_NE(both.notes()[0].find("a.html' (and 1 file like it)"), std::string::npos);
}

TEST(TextSource, AFileThatSeveralPathsLeadToIsTakenOnce) {
  const ScratchFolder folder;
  write_bytes(folder / "a.txt", "one\n");
  write_bytes(folder / "b.txt", "one\n");  // an equal text in another file is a text of its own
  std::filesystem::create_symlink("a.txt", std::string(folder / "link.txt"));
  std::filesystem::create_hard_link(std::string(folder / "a.txt"), std::string(folder / "z.txt"));
  const TextSource source = TextSource::open(
      {folder / "a.txt", folder / "b.txt", folder / "link.txt", folder / "z.txt", folder / "b.txt"},
      {});
  ASSERT_EQ(source.files().size(), 2u);
  EXPECT_EQ(source.units().size(), 2u);
  EXPECT_EQ(source.files()[1].path, std::string(folder / "b.txt"));
  ASSERT_EQ(source.notes().size(), 3u);
  EXPECT_NE(source.notes()[0].find("link.txt' is the same file as"), std::string::npos);
  EXPECT_NE(source.notes()[2].find("is named twice"), std::string::npos);
}

TEST(TextSource, AByteOrderMarkIsNoText) {
  const ScratchFolder folder;
  write_bytes(folder / "t.txt",
              "\xEF\xBB\xBF"
              "ab\ncd\n");
  EXPECT_EQ(read_all(folder / "t.txt").texts, Texts{"ab\ncd\n"});
  EXPECT_EQ(read_all(folder / "t.txt", {.plain_span = 2}).texts, (Texts{"ab\n", "cd\n"}));
}

TEST(TextSource, FormsAreNamedByTheFile) {
  for (const char* name : {"a.jsonl", "b/a.jsonl.gz", "a.ndjson.zst", "c4.json.gz"})
    EXPECT_EQ(text_form_of(name), TextForm::json_lines) << name;
  EXPECT_EQ(text_form_of("a.parquet"), TextForm::parquet);
  for (const char* name : {"a.tar", "a.tgz", "a.tar.gz", "a.tar.zst"})
    EXPECT_EQ(text_form_of(name), TextForm::tar) << name;
  for (const char* name : {"a.txt", "a", "tar", "a.json"})
    EXPECT_EQ(text_form_of(name), TextForm::plain) << name;
}

TEST(TextSource, SpansOfLinesTogetherAreTheFile) {
  const ScratchFolder folder;
  std::string lines;
  Texts expected;
  for (int i = 0; i < 40; ++i) {
    expected.push_back("text " + std::to_string(i) + std::string(static_cast<std::size_t>(i), 'x'));
    lines += "{\"id\": 1, \"text\": \"" + expected.back() + "\"}" + (i % 3 == 0 ? "\r\n" : "\n");
    if (i % 7 == 0) lines += "\n";
  }
  const std::string jsonl = folder / "a.jsonl", plain = folder / "a.txt";
  write_bytes(jsonl, "\xEF\xBB\xBF" + lines.substr(0, lines.size() - 1));
  write_bytes(plain, lines);
  for (const std::int64_t span : {1, 7, 100, 1 << 20}) {
    const TextSourceOptions options{.plain_span = span, .line_span = span};
    const Rows rows = read_all(jsonl, options);
    EXPECT_EQ(rows.texts, expected) << span;
    EXPECT_EQ(rows.damaged.to_string(), "") << span;
    std::string whole;
    const TextSourceOptions as_text{.field = "body", .plain_span = span};
    for (const std::string& text : read_all(plain, as_text).texts) whole += text;
    EXPECT_EQ(whole, lines) << span;
  }
}

TEST(TextSource, PackedLinesAreThoseOfTheFile) {
  const ScratchFolder folder;
  const std::string path = folder / "a.jsonl";
  std::string lines;
  for (int i = 0; i < 5000; ++i) lines += "{\"body\": \"row " + std::to_string(i * i) + "\"}\n";
  write_bytes(path, lines);
  const TextSourceOptions options{.field = "body"};
  const Texts expected = read_all(path, options).texts;
  ASSERT_EQ(expected.size(), 5000u);
  pack("gzip -k " + path + " && zstd -q " + path);
  // Several members and several frames, one after another.
  pack("cd " + folder.path() + " && cat a.jsonl.gz a.jsonl.gz > b.jsonl.gz" +
       " && cat a.jsonl.zst a.jsonl.zst > b.jsonl.zst");
  for (const char* kind : {".gz", ".zst"}) {
    EXPECT_EQ(read_all(path + kind, options).texts, expected) << kind;
    Texts twice = expected;
    twice.insert(twice.end(), expected.begin(), expected.end());
    EXPECT_EQ(read_all(folder / "b.jsonl" + kind, options).texts, twice) << kind;
    const std::string bytes = test::read_bytes(path + kind), cut = folder / "cut.jsonl" + kind;
    write_bytes(cut, bytes.substr(0, bytes.size() / 2));
    EXPECT_DATA_ERROR(read_all(cut, options), "cut off (after line ");
  }
}

TEST(TextSource, DamagedRowsAreCountedWithTheirLines) {
  const ScratchFolder folder;
  const std::string path = folder / "a.jsonl";
  std::string lines = "{\"text\": \"one\"}\n{\"text\": NaN}\n[1]\n{\"other\": 1}\n{\"text\": 5}\n";
  lines += "{\"text\": null}\n{\"text\": \"\"}\n{\"text\": \"bad \xff\"}\n{\"text\": \"tw\n";
  lines += "{\"text\": \"" + std::string(300, 'x') + "\"}\n{\"text\": \"last\"}";
  write_bytes(path, lines);
  // The places are the same whatever the spans.
  for (const std::int64_t span : {10, 1 << 20}) {
    const Rows rows = read_all(path, {.line_span = span, .longest_row = 200});
    EXPECT_EQ(rows.texts, (Texts{"one", "last"}));
    EXPECT_EQ(rows.damaged.count(), 7);
    const std::string said = rows.damaged.to_string();
    for (const char* words :
         {"7 rows left out: ", "not valid JSON 3 (first", "a.jsonl', line 2, column ",
          "not a JSON object 1 (first", "line 3)", "no field 'text' 1", "line 4)",
          "field 'text' is not a text 1", "line 5)", "longer than 200 bytes 1", "line 10)"})
      EXPECT_NE(said.find(words), std::string::npos) << words << " in " << said;
    EXPECT_EQ(DamagedRows::deserialise(rows.damaged.serialise()).to_string(), said);
  }
}

TEST(TextSource, CountsOfRanksAreAddedInTheOrderOfUnits) {
  const auto place = [](const char* name) { return [name] { return std::string(name); }; };
  DamagedRows first, second;
  first.add("bad", 9, place("late"));
  second.add("bad", 3, place("early"));
  second.add("worse", 5, place("there"));
  first.add(second);
  EXPECT_EQ(first.to_string(), "3 rows left out: bad 2 (first early), worse 1 (first there)");
}

TEST(TextSource, SamplesOfTars) {
  const ScratchFolder folder;
  const std::string path = folder / "a.tar";
  write_bytes(path, tar_of({{"000.json", "{\"text\": \"of json\"}"},
                            {"001.json", "{\"caption\": 1}"},
                            {"001.txt", "of txt"},
                            {"002.jpg", "\xff\xd8"},
                            {"../../003.txt", "of a name that climbs"},
                            {"004.txt", "bad \xff"},
                            {"005.json", "{\"text\": "},
                            {"d/006.x.txt", "last"}}));
  const Rows rows = read_all(path);
  EXPECT_EQ(rows.texts, (Texts{"of json", "of txt", "of a name that climbs", "last"}));
  EXPECT_EQ(rows.damaged.count(), 2);
  EXPECT_NE(rows.damaged.to_string().find("a.tar', member '004.txt', byte 4"), std::string::npos)
      << rows.damaged.to_string();
  for (const char* name : {"003.txt", "../003.txt", "../../003.txt"})
    EXPECT_FALSE(std::filesystem::exists(folder / name)) << name;
  pack("gzip -k " + path);
  EXPECT_EQ(read_all(path + ".gz").texts, rows.texts);
  const std::string bytes = test::read_bytes(path);
  write_bytes(path, bytes.substr(0, 512 * 5 + 100));
  EXPECT_DATA_ERROR(read_all(path), "a.tar' is damaged at or after its member '001.txt'");
}

TEST(TextSource, RowsOfParquetThatAreNoTextAreCounted) {
  const ScratchFolder folder;
  const std::string golden =
      (std::filesystem::path(__FILE__).parent_path() / "golden/none_required.parquet").string();
  std::string bytes = test::read_bytes(golden);
  const std::size_t at = bytes.find("caf\xC3\xA9", bytes.size() / 4);
  ASSERT_NE(at, std::string::npos);
  bytes[at + 3] = '\xff';
  const std::string path = folder / "a.parquet";
  write_bytes(path, bytes);
  const Rows good = read_all(golden), rows = read_all(path);
  EXPECT_EQ(rows.texts.size() + 1, good.texts.size());
  EXPECT_NE(rows.damaged.to_string().find("1 row left out: not UTF-8 1 (first '"),
            std::string::npos)
      << rows.damaged.to_string();
  EXPECT_NE(rows.damaged.to_string().find("a.parquet', row group 0, row "), std::string::npos);
}

TEST(TextSource, NothingToReadIsRefused) {
  const ScratchFolder folder;
  EXPECT_DATA_ERROR(read_all(folder / "none.jsonl"), "cannot open");
  EXPECT_DATA_ERROR(read_all(folder.path()), "holds no text files");
  write_bytes(folder / "a.jsonl", "");
  EXPECT_DATA_ERROR(read_all(folder / "a.jsonl"), "is empty");
}

}  // namespace
}  // namespace choir
