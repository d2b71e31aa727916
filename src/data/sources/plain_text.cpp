#include "src/data/sources/text_rows.hpp"

#include <fmt/core.h>

#include <algorithm>

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
constexpr Beginning kBeginnings[] = {
    {"\x28\xB5\x2F\xFD"sv, "compressed by zstd", "unpack it: unzstd FILE"},
    {"BZh"sv, "compressed by bzip2", "unpack it: bunzip2 FILE"},
    {"\xFD"
     "7zXZ"sv,
     "compressed by xz", "unpack it: unxz FILE"},
    {"PAR1"sv, "a Parquet file", "give it a name that ends in .parquet"},
    {"ARROW1"sv, "an Arrow file", "write it as Parquet or JSON lines"},
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
};

std::string_view cure_of(FileKind kind) {
  switch (kind) {
    case FileKind::gzip:
      return "unpack it: gunzip --keep FILE; packed JSON lines are read if their name ends in "
             ".jsonl.gz";
    case FileKind::tar:
      return "unpack it, or give it a name that ends in .tar if its members are texts";
    case FileKind::npy:
      return "token ids are trained from raw files: in Python, "
             "numpy.load(FILE).astype('uint16').tofile('train.bin'), and the deck names train.bin";
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

/// The first line of the text, if it is complete within the head.
std::string_view first_line(std::string_view head) {
  const std::size_t end = head.find('\n');
  return end == head.npos ? std::string_view() : head.substr(0, end);
}

}  // namespace

std::int64_t require_plain_text(const std::string& path, std::string_view field) {
  const PosixFile file = PosixFile::for_reading(path);
  std::string head(static_cast<std::size_t>(std::min(file.size(), kHead)), '\0');
  file.read_at(head.data(), head.size(), 0);
  for (const Beginning& one : kBeginnings)
    if (std::string_view(head).starts_with(one.bytes)) refuse(path, one.kind, one.cure);
  if (const FileKind kind = file_kind(std::string_view(head).substr(0, kFileKindBytes));
      kind != FileKind::unknown && kind != FileKind::html)  // a page is a text like another
    refuse(path, describe(kind), cure_of(kind));
  if (const std::size_t zero = head.find('\0'); zero != head.npos)
    refuse(path, fmt::format("binary (byte {} is 0)", zero),
           "name files of text; raw token ids have names that end in .bin");
  const std::int64_t mark = byte_order_mark(head);
  const std::string_view text = std::string_view(head).substr(static_cast<std::size_t>(mark));
  if (path.ends_with(".json") && text.find_first_not_of(" \t\r\n") != text.npos &&
      text[text.find_first_not_of(" \t\r\n")] == '[')
    refuse(path, "one list of JSON",
           "give it a name that ends in .jsonl; objects in a list are read like lines");
  if (const std::string_view line = first_line(text); line.starts_with('{')) {
    const nlohmann::json row = json_unless_broken(line);
    const auto held = row.is_object() ? row.find(std::string(field)) : row.end();
    if (row.is_object() && held != row.end() && held->is_string())
      refuse(path, fmt::format("JSON lines (the first has the text \"{}\")", field),
             "give it a name that ends in .jsonl");
  }
  return mark;
}

}  // namespace choir
