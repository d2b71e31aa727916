#include "src/data/tokens/text_files.hpp"

#include <algorithm>
#include <filesystem>

#include "choir/core/error.hpp"
#include "src/data/posix_file.hpp"
#include "src/data/vocabulary/utf8.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPieceBytes = std::size_t{1} << 22;

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

}  // namespace

std::vector<TextFile> find_text_files(const std::vector<std::string>& paths) {
  std::vector<TextFile> files;
  std::int64_t total = 0;
  const auto add = [&](const std::string& path) {
    files.push_back({path, PosixFile::for_reading(path).size()});
    total += files.back().bytes;
  };
  for (const auto& path : paths) {
    if (!fs::is_directory(path)) {
      add(path);
      continue;
    }
    const auto below = files_below(path);
    if (below.empty())
      throw DataError(fmt::format("folder '{}' holds no text files", path),
                      "name the files themselves");
    for (const auto& name : below) add(name);
  }
  if (files.empty()) throw DataError("no text given", "name files or folders");
  if (total == 0)
    throw DataError(fmt::format("text '{}' is empty", files.front().path),
                    "check the path, or name more files");
  return files;
}

void read_text(const TextFile& file, const UseText& use) {
  const PosixFile opened = PosixFile::for_reading(file.path);
  std::string piece;
  std::int64_t read = 0;
  while (read < file.bytes) {
    const std::size_t kept = piece.size();
    const auto more = std::min<std::int64_t>(file.bytes - read, kPieceBytes);
    piece.resize(kept + static_cast<std::size_t>(more));
    opened.read_at(piece.data() + kept, static_cast<std::size_t>(more), read);
    const std::int64_t offset = read - static_cast<std::int64_t>(kept);
    read += more;
    piece.erase(0, use(piece, offset, read < file.bytes));
  }
}

void scan_code_points(const TextFile& file, const std::function<void(char32_t)>& use) {
  read_text(file, [&](std::string_view text, std::int64_t offset, bool more_follows) {
    std::size_t at = 0;
    while (at < text.size()) {
      const CodePoint c = first_code_point(text.substr(at));
      if (c.incomplete && more_follows) break;
      if (c.length == 0)
        refuse_utf8(fmt::format("'{}'", file.path), offset + static_cast<std::int64_t>(at));
      use(c.value);
      at += static_cast<std::size_t>(c.length);
    }
    return at;
  });
}

}  // namespace choir
