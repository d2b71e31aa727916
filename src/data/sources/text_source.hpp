#pragma once
// The texts behind a list of files and folders, for preparation and for training without a prepared
// copy: plain text, JSON lines (plain, gzip or zstd), Parquet, and tars of samples (WebDataset). A
// source is divided into units that can be read on their own, so that ranks and threads share the
// work: a span of a plain file or of plain JSON lines, a packed file, a row group of Parquet, a
// tar.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/data/sources/parquet.hpp"

namespace choir {

enum class TextForm { plain, json_lines, parquet, tar };
/// By the end of the name: .jsonl, .ndjson (also with .gz or .zst behind it), .json.gz, .json.zst;
/// .parquet; .tar, .tar.gz, .tgz, .tar.zst. Everything else is plain text.
TextForm text_form_of(std::string_view path);

struct TextFile {
  std::string path;
  std::int64_t bytes = 0;
  TextForm form = TextForm::plain;
  std::int64_t mark = 0;  ///< bytes of the byte-order mark before plain text, which is no text
};

struct TextSourceOptions {
  /// The field of JSON objects and the column of Parquet that hold the text.
  std::string field = "text";
  /// Bytes of a span of plain text and of plain JSON lines.
  std::int64_t plain_span = std::int64_t{1} << 26, line_span = std::int64_t{1} << 26;
  /// Longer rows are damaged.
  std::size_t longest_row = std::size_t{1} << 28;
};

/// The count of rows that a source leaves out because they are damaged, by reason.
class DamagedRows {
 public:
  /// Counts a row. `reason` is one of a few phrases ("no field 'text'"). `place` gives the file
  /// with the line, row or member; it is called for the first row of a reason only, because it may
  /// have to count lines. `order` sorts places in the order of the units.
  void add(const std::string& reason, std::int64_t order,
           const std::function<std::string()>& place);
  /// Adds the counts of another rank.
  void add(const DamagedRows& other);

  std::int64_t count() const;
  /// "3 rows left out: not valid JSON 2 (first a.jsonl:4), ..."; "" for none.
  std::string to_string() const;

  /// Conversion to and from bytes, to send them to another rank.
  std::string serialise() const;
  static DamagedRows deserialise(std::string_view bytes);

 private:
  struct Reason {
    std::int64_t count = 0, order = 0;  ///< `order` of the first place
    std::string first;
  };
  std::map<std::string, Reason> reasons_;
};

/// A unit of a source: bytes [begin, end) of a file, or row group `begin` of a Parquet file.
struct TextUnit {
  std::size_t file = 0;
  std::int64_t begin = 0, end = 0;
  std::int64_t bytes_estimate = 0;  ///< of text; packed files are estimated by their size
};

/// Immutable. read() may be called by several threads.
class TextSource {
 public:
  /// Local. Files in the given order; folders are read recursively and sorted, without names that
  /// begin with a dot. A file that several paths lead to, for example by a link, is taken once: at
  /// its first path. Reads the footers of Parquet files. Throws DataError if a path is missing, a
  /// folder has no files, all files are empty, for a plain file whose content is of another kind
  /// (compressed, an array, JSON ...), or for read_parquet_footer().
  static TextSource open(const std::vector<std::string>& paths, const TextSourceOptions& options);

  const std::vector<TextFile>& files() const { return files_; }
  /// Sentences about paths that were left out, because an earlier one leads to the same file, and
  /// about plain files of a kind whose marks are read as text (HTML, a table ...).
  const std::vector<std::string>& notes() const { return notes_; }
  const std::vector<TextUnit>& units() const { return units_; }
  const TextFile& file_of(std::size_t unit) const { return files_[units_[unit].file]; }
  std::int64_t bytes_estimate() const;
  /// True if the rows of a unit are documents. Plain text has none.
  bool has_documents(std::size_t unit) const { return file_of(unit).form != TextForm::plain; }
  bool has_documents() const;
  /// "'a.parquet', row group 3", "'a.jsonl', bytes 100 to 200".
  std::string place_of(std::size_t unit) const;
  /// "'a.jsonl', line 17"; rows count from 0. May read the file.
  std::string place_of(std::size_t unit, std::int64_t row) const;
  /// A digest of names, sizes and options: ranks with other files would deadlock.
  std::uint64_t digest() const;

  /// Local. Calls use(text, row) for each row of a unit in order; empty texts and absent ones
  /// (null) are left out. Rows that are no text are counted in `damaged`. A span of plain text is
  /// one row: the lines that begin in it. The text is UTF-8, unless it is plain. Throws DataError
  /// if a file cannot be read, changed, is damaged or cut off.
  using UseRow = std::function<void(std::string_view text, std::int64_t row)>;
  void read(std::size_t unit, const UseRow& use, DamagedRows& damaged) const;

 private:
  void add(const std::string& path);
  void add_spans(std::size_t file, std::int64_t span);
  void read_plain(std::size_t unit, const UseRow& use) const;
  /// False for a file that is not one JSON array.
  bool read_array(std::size_t unit, const UseRow& use, DamagedRows& damaged) const;
  void read_lines(std::size_t unit, const UseRow& use, DamagedRows& damaged) const;
  void read_group(std::size_t unit, const UseRow& use, DamagedRows& damaged) const;
  void read_tar(std::size_t unit, const UseRow& use, DamagedRows& damaged) const;

  TextSourceOptions options_;
  std::vector<TextFile> files_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::size_t> identities_;  ///< device, inode
  /// Plain files of a kind that marked_kind() knows.
  struct Marked {
    std::int64_t files = 0;
    std::string first;
    std::string_view cure;
  };
  std::map<std::string_view, Marked> marked_;  ///< by the name of the kind
  std::vector<std::string> notes_;
  std::vector<std::shared_ptr<const ParquetColumn>> columns_;  ///< of each file; null: no Parquet
  std::vector<TextUnit> units_;
};

}  // namespace choir
