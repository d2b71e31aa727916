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

/// Files in the given order; folders recursively, sorted, without names that begin with a dot.
/// Throws DataError when a path is missing, a folder has no files, or all is empty.
std::vector<TextFile> find_text_files(const std::vector<std::string>& paths);

/// Calls use(piece, offset, more_follows) over one file. `use` returns how many bytes it took; what
/// it left is given again in front of the next piece (it must take all of the last).
using UseText = std::function<std::size_t(std::string_view, std::int64_t, bool)>;
void read_text(const TextFile& file, const UseText& use);

/// Calls use(code point) for every code point of the file. Throws DataError with the file and the
/// byte offset where it is not UTF-8.
void scan_code_points(const TextFile& file, const std::function<void(char32_t)>& use);

}  // namespace choir
