#include "src/data/sources/text_source.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/json_array_reader.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/data/sources/parquet.hpp"
#include "src/data/sources/text_rows.hpp"
#include "src/data/vocabulary/utf8.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code failure;
  auto walk = fs::recursive_directory_iterator(folder, failure);
  for (; !failure && walk != fs::recursive_directory_iterator(); walk.increment(failure)) {
    if (walk->path().filename().string().starts_with(".")) {
      walk.disable_recursion_pending();
      continue;
    }
    if (walk->is_regular_file()) names.push_back(walk->path());
  }
  if (failure)
    throw DataError(fmt::format("cannot list the folder '{}': {}", folder, failure.message()));
  std::sort(names.begin(), names.end());
  return names;
}

/// Calls use(bytes, offset) for pieces of a file from `from` on until it returns false.
template <class Use>
void for_pieces(const PosixFile& file, std::int64_t from, std::int64_t end, Use&& use) {
  constexpr std::int64_t kScanned = std::int64_t{1} << 18;
  std::string piece;
  for (bool more = true; more && from < end;) {
    piece.resize(static_cast<std::size_t>(std::min(kScanned, end - from)));
    file.read_at(piece.data(), piece.size(), from);
    more = use(std::string_view(piece), from);
    from += std::ssize(piece);
  }
}

/// The first line that begins at or behind `place`; the end of the file if there is none.
std::int64_t line_begin(const PosixFile& file, std::int64_t place, std::int64_t bytes) {
  if (place == 0 || place >= bytes) return std::min(place, bytes);
  std::int64_t found = bytes;
  for_pieces(file, place - 1, bytes, [&](std::string_view piece, std::int64_t offset) {
    const std::size_t at = piece.find('\n');
    if (at == std::string_view::npos) return true;
    found = offset + static_cast<std::int64_t>(at) + 1;
    return false;
  });
  return found;
}

std::int64_t count_lines(const PosixFile& file, std::int64_t end) {
  std::int64_t lines = 0;
  for_pieces(file, 0, end, [&](std::string_view piece, std::int64_t) {
    lines += std::count(piece.begin(), piece.end(), '\n');
    return true;
  });
  return lines;
}

/// Sorts the places of damaged rows.
std::int64_t order_of(std::size_t unit, std::int64_t row) {
  return (static_cast<std::int64_t>(unit) << 32) + std::min<std::int64_t>(row, UINT32_MAX);
}

std::string with_detail(const std::string& place, const std::string& detail) {
  return detail.empty() ? place : fmt::format("{}, {}", place, detail);
}

}  // namespace

TextForm text_form_of(std::string_view path) {
  const auto ends = [&](std::initializer_list<std::string_view> names) {
    return std::ranges::any_of(names, [&](std::string_view name) { return path.ends_with(name); });
  };
  if (ends({".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".ndjson.gz", ".ndjson.zst", ".json.gz",
            ".json.zst"}))
    return TextForm::json_lines;
  if (ends({".parquet"})) return TextForm::parquet;
  if (ends({".tar", ".tar.gz", ".tgz", ".tar.zst"})) return TextForm::tar;
  return TextForm::plain;
}

TextSource TextSource::open(const std::vector<std::string>& paths,
                            const TextSourceOptions& options) {
  TextSource source;
  source.options_ = options;
  std::int64_t total = 0;
  for (const auto& path : paths) {
    if (!fs::is_directory(path)) {
      source.add(path);
      continue;
    }
    const auto below = files_below(path);
    if (below.empty())
      throw DataError(fmt::format("folder '{}' holds no text files", path),
                      "name the files themselves");
    for (const auto& name : below) source.add(name);
  }
  if (source.files_.empty()) throw DataError("no text given", "name files or folders");
  for (const TextFile& file : source.files_) total += file.bytes;
  if (total == 0)
    throw DataError(fmt::format("text '{}' is empty", source.files_.front().path),
                    "check the path, or name more files");
  for (const auto& [kind, marked] : source.marked_)
    source.notes_.push_back(fmt::format(
        "'{}'{} is {}, all of which is read as text; {}", marked.first,
        marked.files == 1 ? ""
                          : fmt::format(" (and {} like it)", counted(marked.files - 1, "file")),
        kind, marked.cure));
  return source;
}

void TextSource::add(const std::string& path) {
  const TextForm form = text_form_of(path);
  const std::size_t file = files_.size();
  if (struct stat status{}; stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode)) {
    const auto [at, fresh] = identities_.try_emplace({status.st_dev, status.st_ino}, file);
    if (!fresh) {
      const std::string& first = files_[at->second].path;
      notes_.push_back(path == first ? fmt::format("'{}' is named twice and read once", path)
                                     : fmt::format("'{}' is the same file as '{}' and is read once",
                                                   path, first));
      return;
    }
  }
  files_.push_back({path, PosixFile::for_reading(path).size(), form});
  columns_.emplace_back();
  const std::int64_t bytes = files_.back().bytes;
  if (form == TextForm::plain) {
    const PlainText plain = require_plain_text(path, options_.field);
    files_.back().mark = plain.mark;
    if (plain.rather) {
      Marked& marked = marked_[plain.rather->name];
      if (marked.files++ == 0) marked.first = path, marked.cure = plain.rather->cure;
    }
    return add_spans(file, options_.plain_span);
  }
  if (form == TextForm::json_lines && packing_of(path) == Codec::none)
    return add_spans(file, options_.line_span);
  if (form != TextForm::parquet) {
    units_.push_back({file, 0, bytes, bytes});
    return;
  }
  const auto column =
      std::make_shared<const ParquetColumn>(read_parquet_footer(path, options_.field));
  columns_.back() = column;
  for (std::int64_t group = 0; group < std::ssize(column->chunks); ++group)
    units_.push_back(
        {file, group, group + 1, column->chunks[static_cast<std::size_t>(group)].bytes});
}

void TextSource::add_spans(std::size_t file, std::int64_t span) {
  const std::int64_t bytes = files_[file].bytes;
  for (std::int64_t at = 0; at < bytes; at += std::min(span, bytes - at)) {
    const std::int64_t here = std::min(span, bytes - at);
    units_.push_back({file, at, at + here, here});
  }
}

std::int64_t TextSource::bytes_estimate() const {
  std::int64_t sum = 0;
  for (const TextUnit& unit : units_) sum += unit.bytes_estimate;
  return sum;
}

bool TextSource::has_documents() const {
  return std::ranges::any_of(files_, [](const TextFile& f) { return f.form != TextForm::plain; });
}

std::string TextSource::place_of(std::size_t unit) const {
  const TextUnit& u = units_[unit];
  const TextFile& file = file_of(unit);
  if (file.form == TextForm::parquet) return fmt::format("'{}', row group {}", file.path, u.begin);
  if (u.begin == 0 && u.end == file.bytes) return fmt::format("'{}'", file.path);
  return fmt::format("'{}', bytes {} to {}", file.path, u.begin, u.end);
}

std::string TextSource::place_of(std::size_t unit, std::int64_t row) const {
  const TextUnit& u = units_[unit];
  const TextFile& file = file_of(unit);
  if (file.form == TextForm::parquet)
    return fmt::format("'{}', row group {}, row {}", file.path, u.begin, row);
  if (file.form == TextForm::tar) return fmt::format("'{}', text {}", file.path, row);
  if (file.form == TextForm::plain) return fmt::format("'{}'", file.path);
  std::int64_t before = 0;
  if (u.begin > 0) {
    const PosixFile opened = PosixFile::for_reading(file.path);
    before = count_lines(opened, line_begin(opened, u.begin, file.bytes));
  }
  return fmt::format("'{}', line {}", file.path, before + row + 1);
}

std::uint64_t TextSource::digest() const {
  std::string names = options_.field;
  for (const TextFile& file : files_) names += fmt::format("\n{}\n{}", file.path, file.bytes);
  names += fmt::format("\n{}", units_.size());
  return fnv1a(names);
}

void TextSource::read(std::size_t unit, const UseRow& use, DamagedRows& damaged) const {
  CHOIR_CHECK(unit < units_.size(), "unit {} of {}", unit, units_.size());
  switch (file_of(unit).form) {
    case TextForm::plain:
      return read_plain(unit, use);
    case TextForm::json_lines:
      return read_lines(unit, use, damaged);
    case TextForm::parquet:
      return read_group(unit, use, damaged);
    case TextForm::tar:
      return read_tar(unit, use, damaged);
  }
}

void TextSource::read_plain(std::size_t unit, const UseRow& use) const {
  const TextUnit& u = units_[unit];
  const TextFile& file = file_of(unit);
  const PosixFile opened = PosixFile::for_reading(file.path);
  const std::int64_t begin = std::max(line_begin(opened, u.begin, file.bytes), file.mark);
  const std::int64_t end = line_begin(opened, u.end, file.bytes);
  if (end <= begin) return;
  std::string text(static_cast<std::size_t>(end - begin), '\0');
  opened.read_at(text.data(), text.size(), begin);
  use(text, 0);
}

/// One array has no lines at which it could be divided, so that its first unit reads all of it.
bool TextSource::read_array(std::size_t unit, const UseRow& use, DamagedRows& damaged) const {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  const std::string& path = file_of(unit).path;
  const std::unique_ptr<ByteStream> bytes = open_bytes(path);
  const auto next_piece = [&](std::string& piece) {
    piece.resize(kPiece);
    piece.resize(bytes->read(piece.data(), kPiece));
    return !piece.empty();
  };
  std::string text;
  try {
    next_piece(text);
  } catch (const DataError&) {
    return false;  // whoever reads the lines names the one at which the file ends
  }
  text.erase(0, static_cast<std::size_t>(byte_order_mark(text)));
  if (!JsonArrayReader::begins(text)) return false;
  if (units_[unit].begin > 0) return true;
  JsonArrayReader elements(std::move(text), next_piece, path);
  while (elements.next(text)) {
    const std::int64_t row = elements.number() - 1;
    RowText found;
    if (text.size() > options_.longest_row)
      found.fault = fmt::format("longer than {} bytes", options_.longest_row);
    else
      found = text_of_row(text, options_.field);
    if (!found.fault.empty())
      damaged.add(found.fault, order_of(unit, row),
                  [&] { return with_detail(place_of(unit, row), found.detail); });
    else if (!found.text.empty())
      use(found.text, row);
  }
  return true;
}

void TextSource::read_lines(std::size_t unit, const UseRow& use, DamagedRows& damaged) const {
  if (read_array(unit, use, damaged)) return;
  const TextUnit& u = units_[unit];
  const TextFile& file = file_of(unit);
  std::unique_ptr<ByteStream> bytes;
  std::int64_t first = 0, end = INT64_MAX;
  if (packing_of(file.path) == Codec::none) {
    const PosixFile opened = PosixFile::for_reading(file.path);
    first = line_begin(opened, u.begin, file.bytes);
    end = u.end;
    bytes = open_bytes(file.path, first, file.bytes);
  } else {
    bytes = open_bytes(file.path);
  }
  LineScanner lines(std::move(bytes), options_.longest_row, first == 0);
  std::string line;
  while (first + lines.position() < end) {
    const LineScanner::Line got = lines.next(line);
    if (got == LineScanner::Line::end) return;
    const std::int64_t row = lines.number() - 1;
    RowText found;
    if (got == LineScanner::Line::too_long)
      found.fault = fmt::format("longer than {} bytes", options_.longest_row);
    else if (line.find_first_not_of(" \t") != std::string::npos)
      found = text_of_row(line, options_.field);
    if (!found.fault.empty())
      damaged.add(found.fault, order_of(unit, row),
                  [&] { return with_detail(place_of(unit, row), found.detail); });
    else if (!found.text.empty())
      use(found.text, row);
  }
}

void TextSource::read_group(std::size_t unit, const UseRow& use, DamagedRows& damaged) const {
  const TextUnit& u = units_[unit];
  const auto count = [&](const std::string& reason, std::int64_t row) {
    damaged.add(reason, order_of(unit, row), [&] { return place_of(unit, row); });
  };
  read_parquet_group(file_of(unit).path, *columns_[u.file], static_cast<std::size_t>(u.begin),
                     [&](std::int64_t row, std::string_view text) {
                       if (text.size() > options_.longest_row)
                         count(fmt::format("longer than {} bytes", options_.longest_row), row);
                       else if (valid_utf8(text) != text.size())
                         count("not UTF-8", row);
                       else if (!text.empty())
                         use(text, row);
                     });
}

void TextSource::read_tar(std::size_t unit, const UseRow& use, DamagedRows& damaged) const {
  std::int64_t row = 0;
  read_tar_texts(file_of(unit).path, options_.field, options_.longest_row,
                 [&](const std::string& member, RowText&& found) {
                   if (!found.fault.empty())
                     damaged.add(found.fault, order_of(unit, row), [&] {
                       return with_detail(
                           fmt::format("'{}', member '{}'", file_of(unit).path, member),
                           found.detail);
                     });
                   else if (!found.text.empty())
                     use(found.text, row);
                   ++row;
                 });
}

}  // namespace choir
