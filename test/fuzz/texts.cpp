// Fuzzes sources of text. The first byte: 'p' Parquet, 'j' JSON lines, 'g' and 'z' the same packed
// with gzip and zstd, 't' a tar, any other byte plain text. A source is refused, or its units are
// read to texts of UTF-8 with a count of the rows that are none; the spans into which JSON lines
// are cut change neither.
#include <archive.h>
#include <archive_entry.h>

#include "src/data/sources/text_source.hpp"
#include "src/data/vocabulary/utf8.hpp"
#include "test/fuzz/fuzz.hpp"

namespace choir::fuzz {
namespace {

constexpr const char* kLines =
    "{\"text\": \"one\"}\r\n{\"text\": NaN}\n\n{\"text\": null}\n{\"no\": 1}\n[{\"text\": 2}]\n"
    "{\"text\": \"\\u00e9\\ud83d\\ude00\"}";

std::string packed_by(const std::string& bytes, int (*format)(archive*), int (*filter)(archive*)) {
  std::string made(bytes.size() + 16384, '\0');
  std::size_t used = 0;
  archive* handle = archive_write_new();
  format(handle);
  filter(handle);
  archive_write_open_memory(handle, made.data(), made.size(), &used);
  for (const char* name : {"000.txt", "001.json", "../../002.txt"}) {
    archive_entry* entry = archive_entry_new();
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_pathname(entry, name);
    archive_entry_set_size(entry, static_cast<la_int64_t>(bytes.size()));
    archive_write_header(handle, entry);
    archive_write_data(handle, bytes.data(), bytes.size());
    archive_entry_free(entry);
    if (format == archive_write_set_format_raw) break;
  }
  archive_write_free(handle);
  return made.substr(0, used);
}

/// Corrects the checksums of apparent headers, so that the code behind the check is reached.
void put_tar_sums(std::string& tar) {
  for (std::size_t at = 0; at + 512 <= tar.size(); at += 512) {
    if (tar.compare(at + 257, 5, "ustar") != 0) continue;
    std::string("        ").copy(tar.data() + at + 148, 8);
    unsigned sum = 0;
    for (std::size_t i = at; i < at + 512; ++i) sum += static_cast<unsigned char>(tar[i]);
    (fmt::format("{:06o}", sum) + std::string("\0 ", 2)).copy(tar.data() + at + 148, 8);
  }
}

struct Contents {
  std::string texts;
  std::int64_t rows = 0, damaged = 0;
  friend bool operator==(const Contents&, const Contents&) = default;
};

struct Enough {};  // a few bytes of Parquet may hold billions of rows

Contents contents_of(const std::string& path, std::int64_t span) {
  constexpr std::int64_t kEnough = 100'000;
  const TextSource source =
      TextSource::open({path}, {.plain_span = span, .line_span = span, .longest_row = 4096});
  Contents all;
  DamagedRows damaged;
  for (std::size_t unit = 0; unit < source.units().size(); ++unit)
    source.read(
        unit,
        [&](std::string_view text, std::int64_t) {
          require(!text.empty(), "an empty row");
          require(!source.has_documents(unit) || valid_utf8(text) == text.size(), "no UTF-8");
          if (++all.rows > kEnough) throw Enough{};
          all.texts += text;
        },
        damaged);
  all.damaged = damaged.count();
  require(DamagedRows::deserialise(damaged.serialise()).to_string() == damaged.to_string(),
          "counts that change on their way");
  return all;
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string lines = kLines;
  std::vector<std::string> all{
      "j" + lines,
      "j\xEF\xBB\xBF" + lines,
      "x" + lines,
      "g" + packed_by(lines, archive_write_set_format_raw, archive_write_add_filter_gzip),
      "z" + packed_by(lines, archive_write_set_format_raw, archive_write_add_filter_zstd),
      "t" + packed_by("{\"text\": \"of a tar\"}", archive_write_set_format_ustar,
                      archive_write_add_filter_none)};
  const std::string golden = "test/unit/data/sources/golden";
  for (const auto& entry : std::filesystem::directory_iterator(golden))
    all.push_back("p" + read_bytes(entry.path()));
  return all;
}

void try_input(std::string_view input) {
  if (input.empty()) return;
  const char kind = input.front();
  std::string bytes(input.substr(1));
  if (kind == 't') put_tar_sums(bytes);
  const std::string name = kind == 'p'   ? "a.parquet"
                           : kind == 'j' ? "a.jsonl"
                           : kind == 'g' ? "a.jsonl.gz"
                           : kind == 'z' ? "a.jsonl.zst"
                           : kind == 't' ? "a.tar"
                                         : "a.txt";
  const std::string path = put(name, bytes);
  try {
    accepted([&] {
      const Contents whole = contents_of(path, 1 << 20);
      if (kind != 'p') require(contents_of(path, 37).texts == whole.texts, "spans change a text");
      if (kind == 'j') require(contents_of(path, 37) == whole, "spans change the rows");
    });
  } catch (const Enough&) {
  }
}

}  // namespace choir::fuzz
