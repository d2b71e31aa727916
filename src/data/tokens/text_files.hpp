#pragma once
// The text files behind a list of files and folders, read in pieces.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

struct TextFile {
  std::string path;
  std::int64_t bytes = 0;
};

/// Returns files in the given order; folders are read recursively and sorted, without names that
/// begin with a dot. Throws DataError if a path is missing, a folder has no files, or all files are
/// empty.
std::vector<TextFile> find_text_files(const std::vector<std::string>& paths);

/// Calls use(piece, offset, more_follows) over one file. `use` returns the number of bytes that it
/// consumed; the rest is passed again at the front of the next piece (it must consume all of the
/// last piece).
using UseText = std::function<std::size_t(std::string_view, std::int64_t, bool)>;
void read_text(const TextFile& file, const UseText& use);

/// Calls use(code point) for every code point of the file. Throws DataError with the file and the
/// byte offset if the text is not UTF-8.
void scan_code_points(const TextFile& file, const std::function<void(char32_t)>& use);

}  // namespace choir
