#include "src/data/sources/text_rows.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <vector>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/file_kind.hpp"
#include "src/core/json_value.hpp"
#include "src/data/vocabulary/utf8.hpp"

namespace choir {
namespace {

constexpr std::int64_t kHead = 1 << 16;

/// The beginnings of kinds that file_kind() does not know, because no model is stored in them.
struct Beginning {
  std::string_view bytes, kind, cure;
};
using namespace std::string_view_literals;
constexpr std::string_view kJsonCure =
    "write its texts as JSON lines, objects with the text \"text\", in a file named .jsonl";
constexpr std::string_view kAsRows = "write it as Parquet or JSON lines";
constexpr std::string_view kOfPython =
    "open it in Python, and write its texts as JSON lines, or its token ids with "
    "numpy.array(IDS, 'uint32').tofile('train.bin')";
constexpr Beginning kBeginnings[] = {
    {"\x28\xB5\x2F\xFD"sv, "compressed by zstd", "unpack it: unzstd FILE"},
    {"BZh"sv, "compressed by bzip2", "unpack it: bunzip2 FILE"},
    {"\xFD"
     "7zXZ"sv,
     "compressed by xz", "unpack it: unxz FILE"},
    {"PAR1"sv, "a Parquet file", "give it a name that ends in .parquet"},
    {"ARROW1"sv, "an Arrow file", kAsRows},
    {"\xFF\xFF\xFF\xFF"sv, "a stream of Arrow, as the library datasets stores", kAsRows},
    {"\xFF\xFE\0\0"sv, "text in UTF-32", "convert it: iconv -f utf-32 -t utf-8 FILE > NEW"},
    {"\0\0\xFE\xFF"sv, "text in UTF-32", "convert it: iconv -f utf-32 -t utf-8 FILE > NEW"},
    {"\xFF\xFE"sv, "text in UTF-16", "convert it: iconv -f utf-16 -t utf-8 FILE > NEW"},
    {"\xFE\xFF"sv, "text in UTF-16", "convert it: iconv -f utf-16 -t utf-8 FILE > NEW"},
    {"%PDF-"sv, "a PDF document", "extract its text: pdftotext FILE"},
    {"\x89PNG"sv, "a picture", "name files of text"},
    {"\xFF\xD8\xFF"sv, "a picture", "name files of text"},
    {"RIFF"sv, "sound or video", "speech is prepared by `choir prepare audio`"},
    {"fLaC"sv, "sound", "speech is prepared by `choir prepare audio`"},
    {"OggS"sv, "sound", "speech is prepared by `choir prepare audio`"},
    {"ID3"sv, "sound", "speech is prepared by `choir prepare audio`"},
    {"\x7F"
     "ELF"sv,
     "a program", "name files of text"},
    {"SQLite format 3"sv, "a database", "write its texts as JSON lines"},
    {"WARC/1."sv, "an archive of web pages (WARC)",
     "write the texts of its pages as JSON lines, in Python with warcio and trafilatura"},
    {"%!PS"sv, "a PostScript document", "extract its text: ps2ascii FILE"},
    {"{\\rtf"sv, "a document of a word processor", "save it as plain text in UTF-8"},
    {"\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1"sv, "a document of a word processor",
     "save it as plain text in UTF-8"},
    {"\x80\x02"sv, "a pickle of Python", kOfPython},
    {"\x80\x03"sv, "a pickle of Python", kOfPython},
    {"\x80\x04\x95"sv, "a pickle of Python", kOfPython},
    {"\x80\x05\x95"sv, "a pickle of Python", kOfPython},
};

std::string_view cure_of(FileKind kind) {
  switch (kind) {
    case FileKind::gzip:
      return "unpack it: gunzip --keep FILE; packed JSON lines are read if their name ends in "
             ".jsonl.gz";
    case FileKind::zip:
      return "a .docx is saved as plain text, a .zip unpacked; of .npz and .pt, write the texts as "
             "JSON lines and token ids with numpy's tofile('train.bin')";
    case FileKind::tar:
      return "unpack it, or give it a name that ends in .tar if its members are texts";
    case FileKind::npy:
      return "token ids are trained from raw files: in Python, "
             "numpy.load(FILE).astype('uint32').tofile('train.bin'), and the deck names train.bin";
    case FileKind::llmc_tokens_u16:
    case FileKind::llmc_tokens_u32:
    case FileKind::megatron_index:
      return "tokens are not prepared again: name the .bin file in data.train of a deck";
    default:
      return "name files of text";
  }
}

[[noreturn]] void refuse(const std::string& path, std::string_view kind, std::string_view cure) {
  throw DataError(fmt::format("'{}' is {}, not plain text", path, kind), std::string(cure));
}

/// The code units of a text without a byte-order mark, in words of `width` bytes.
std::vector<std::uint32_t> units_of(std::string_view head, std::size_t width, bool big) {
  std::vector<std::uint32_t> units(head.size() / width, 0);
  for (std::size_t i = 0; i < units.size() * width; ++i) {
    const std::size_t place = big ? width - 1 - i % width : i % width;
    units[i / width] |= static_cast<std::uint32_t>(static_cast<unsigned char>(head[i]))
                        << (8 * place);
  }
  return units;
}

/// True if all units are characters, and as many of them as in a text are blanks or line ends, also
/// those of Chinese and Japanese. Token ids have small numbers, too, which no text has.
bool reads_as_text(const std::vector<std::uint32_t>& units) {
  constexpr std::size_t kFewest = 8, kMostBetweenBlanks = 60;
  std::size_t blanks = 0, open = 0;  // open: the first half of a pair
  for (const std::uint32_t unit : units) {
    const bool blank = unit == ' ' || unit == '\t' || unit == '\n' || unit == '\r';
    const bool low = unit >= 0xDC00 && unit < 0xE000;
    if ((unit < 0x20 && !blank) || unit > 0x10FFFF || low != (open == 1)) return false;
    open = unit >= 0xD800 && unit < 0xDC00 ? 1 : 0;
    blanks += blank || (unit >= 0x3000 && unit <= 0x3002) ? 1 : 0;
  }
  return units.size() >= kFewest && blanks * kMostBetweenBlanks >= units.size();
}

/// The name that iconv has for a text of wider units without a byte-order mark; "" for other bytes.
std::string_view encoding_without_mark(std::string_view head) {
  struct Encoding {
    std::string_view name;
    std::size_t width;
    bool big;
  };
  for (const Encoding& one : {Encoding{"utf-16le", 2, false},
                              {"utf-16be", 2, true},
                              {"utf-32le", 4, false},
                              {"utf-32be", 4, true}})
    if (reads_as_text(units_of(head, one.width, one.big))) return one.name;
  return {};
}

/// The first line of the text, if it is complete within the head.
std::string_view first_line(std::string_view head) {
  const std::size_t end = head.find('\n');
  return end == head.npos ? std::string_view() : head.substr(0, end);
}

constexpr std::string_view kTableCure =
    "write it as JSON lines, in Python: pandas.read_csv(FILE).to_json('NEW.jsonl', "
    "orient='records', lines=True); of a table with tabs, read_csv(FILE, sep='\\t'); a column of "
    "another name than \"text\" is named by data.text_field (--text-field of `choir prepare text`)";

struct TableShape {
  std::size_t rows = 0, columns = 0;
  bool spaced = false;  ///< a field begins with a blank, as after the commas of prose
};

/// The shape of a text whose complete lines all have the same number of fields; no columns for
/// other texts. A field that begins with a quote may contain separators, line ends and doubled
/// quotes.
TableShape shape_of_table(std::string_view text, char between, bool whole) {
  TableShape shape;
  std::size_t fields = 1;
  bool quoted = false, begins = true;
  if (whole) text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  for (std::size_t at = 0; at <= text.size(); ++at) {
    if (at == text.size() && (!whole || quoted)) break;
    const char c = at == text.size() ? '\n' : text[at];
    if (quoted && c == '"' && at + 1 < text.size() && text[at + 1] == '"') {
      ++at;  // a quote within quotes
    } else if (c == '"' && (quoted || begins)) {
      quoted = !quoted;
    } else if (!quoted && c == '\n') {
      if (shape.rows++ == 0) shape.columns = fields;
      if (fields != shape.columns) return {};
      fields = 1, begins = true;
      continue;
    } else if (!quoted && c == between) {
      ++fields, begins = true;
      continue;
    } else if (begins && c == ' ') {
      shape.spaced = true;
    }
    begins = false;
  }
  return quoted && whole ? TableShape() : shape;
}

/// True for a table: by its content alone if it has many rows of several columns, as no prose has
/// them, and by fewer if its name ends in .csv or .tsv.
bool is_table(std::string_view text, bool named, bool whole) {
  return std::ranges::any_of(std::string_view("\t,;"), [&](char between) {
    const TableShape shape = shape_of_table(text, between, whole);
    return named ? shape.rows >= 2 && shape.columns >= 2
                 : shape.rows >= 8 && shape.columns >= 3 && !shape.spaced;
  });
}

/// True for a text that has nothing but names of files that exist, as seen from here or from the
/// folder of the text, each perhaps with a weight before it: a list for another program, such as
/// the blend of Megatron-LM, whose names lack ".bin".
bool lists_files(std::string_view text, const std::filesystem::path& folder) {
  std::int64_t files = 0;
  for (const std::string_view word : split_at_blanks(text)) {
    double weight = 0;
    const auto [end, failed] = std::from_chars(word.data(), word.data() + word.size(), weight);
    if (failed == std::errc() && end == word.data() + word.size()) continue;
    std::error_code ignored;
    const auto is_file = [&](const std::filesystem::path& name) {
      return std::filesystem::is_regular_file(name, ignored);
    };
    const std::string name(word);
    if (!is_file(name) && !is_file(name + ".bin") && !is_file(folder / name) &&
        !is_file(folder / (name + ".bin")))
      return false;
    ++files;
  }
  return files > 0;
}

/// The kind of a text that has marks beside its words.
std::optional<KnownKind> marked_kind(std::string_view text, bool whole) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == text.npos) return std::nullopt;
  const std::string_view body = text.substr(first);
  if (file_kind(body.substr(0, kFileKindBytes)) == FileKind::html)
    return KnownKind{"a page of HTML",
                     "for its words alone, convert it: pandoc -f html -t plain "
                     "FILE -o NEW.txt"};
  if (body.starts_with("<mediawiki"))
    return KnownKind{"a dump of MediaWiki",
                     "for its words alone: wikiextractor --json FILE, whose "
                     "files are JSON lines"};
  for (const std::string_view root : {"<?xml", "<!DOCTYPE", "<svg", "<rss", "<TEI"})
    if (body.starts_with(root))
      return KnownKind{"XML",
                       "for its words alone, in Python: '\\n'.join(xml.etree.ElementTree."
                       "parse(FILE).getroot().itertext())"};
  if (is_table(text, false, whole)) return KnownKind{"a table", kTableCure};
  const std::size_t inside = body.find_first_not_of(" \t\r\n", 1);
  if (inside != body.npos && body.front() == '{' && body[inside] == '"' &&
      !json_unless_broken(first_line(body)).is_discarded())
    return KnownKind{"JSON lines", kJsonCure};
  if (whole && (body.front() == '{' || body.front() == '[') &&
      !json_unless_broken(body).is_discarded())
    return KnownKind{"JSON", kJsonCure};
  return std::nullopt;
}

/// True for the first line of a table of several columns, one of which is named `field`.
bool is_table_with(std::string_view line, std::string_view field) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  const char between = line.find('\t') == line.npos ? ',' : '\t';
  std::size_t columns = 0;
  bool named = false;
  for (bool more = true; more; ++columns) {
    const std::size_t end = line.find(between);
    std::string_view column = line.substr(0, end);
    if (column.size() > 1 && column.starts_with('"') && column.ends_with('"'))
      column = column.substr(1, column.size() - 2);
    if (column.find(' ') != column.npos) return false;  // a sentence with commas
    named = named || column == field;
    more = end != line.npos;
    if (more) line.remove_prefix(end + 1);
  }
  return named && columns > 1;
}

}  // namespace

std::optional<KnownKind> known_kind(std::string_view head, std::size_t least_bytes) {
  for (const Beginning& one : kBeginnings)
    if (one.bytes.size() >= least_bytes && head.starts_with(one.bytes))
      return KnownKind{one.kind, one.cure};
  const FileKind kind = file_kind(head.substr(0, kFileKindBytes));
  if (kind == FileKind::unknown || kind == FileKind::html)  // a page is text; see marked_kind()
    return std::nullopt;
  return KnownKind{describe(kind), cure_of(kind)};
}

PlainText require_plain_text(const std::string& path, std::string_view field) {
  const PosixFile file = PosixFile::for_reading(path);
  std::string head(static_cast<std::size_t>(std::min(file.size(), kHead)), '\0');
  file.read_at(head.data(), head.size(), 0);
  if (const auto known = known_kind(head, 2)) refuse(path, known->name, known->cure);
  if (const std::size_t zero = head.find('\0'); zero != head.npos) {
    if (const auto encoding = encoding_without_mark(head); !encoding.empty())
      refuse(path, fmt::format("text in {} without a byte-order mark", encoding),
             fmt::format("convert it: iconv -f {} -t utf-8 FILE > NEW", encoding));
    refuse(path, fmt::format("binary (byte {} is 0)", zero),
           "name files of text; if it holds raw token ids of 16 or 32 bits and nothing else, its "
           "name must end in .bin");
  }
  const std::int64_t mark = byte_order_mark(head);
  const std::string_view text = std::string_view(head).substr(static_cast<std::size_t>(mark));
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (path.ends_with(".json") && first != text.npos && text[first] == '[')
    refuse(path, "one list of JSON",
           "give it a name that ends in .jsonl; objects in a list are read like lines");
  const std::string_view line = first_line(text);
  if (is_table_with(line, field))
    refuse(path, fmt::format("a table with the column \"{}\"", field), std::string(kTableCure));
  if (line.starts_with('{')) {
    const nlohmann::json row = json_unless_broken(line);
    const auto held = row.is_object() ? row.find(std::string(field)) : row.end();
    if (row.is_object() && held != row.end() && held->is_string())
      refuse(path, fmt::format("JSON lines (the first has the text \"{}\")", field),
             "give it a name that ends in .jsonl");
  }
  if (path.ends_with(".json") && first != text.npos && text[first] == '{')
    refuse(path, "JSON", kJsonCure);
  const bool whole = file.size() <= kHead;
  if (whole && lists_files(text, std::filesystem::path(path).parent_path()))
    refuse(path, "a list of files",
           "name the files themselves in data.train; files with weights are a list in "
           "data.input_cfg: data.input_cfg=[{\"folder\": \"PATH\", \"weight\": 0.3}, ...]");
  if ((path.ends_with(".csv") || path.ends_with(".tsv")) && is_table(text, true, whole))
    refuse(path, "a table", kTableCure);
  return {mark, marked_kind(text, whole)};
}

}  // namespace choir
