#pragma once
// Reading of texts: the text files behind a list of files and folders, read in pieces, and their
// encoding to ids by all ranks in parallel. For the encoding, the bytes of all files are cut into
// parts of equal size; each rank encodes every n-th part from the position where it expects the
// previous part to end. A part with a wrong begin is encoded again from the actual end of the
// previous part, so the ids are equal to those of a single rank.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "src/data/vocabulary/vocabulary.hpp"

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

using UseIds = std::function<void(std::span<const std::int32_t>)>;

/// Collective over `ranks`, or local if it is nullptr. On rank 0 `use` gets the ids of the files in
/// order; each file is a text of its own. A rank keeps some parts of `part_bytes` in memory. Throws
/// DataError as Vocabulary::encode, and the errors of `use`, on every rank.
void encode_texts(Communicator* ranks, const std::vector<TextFile>& files,
                  const Vocabulary& vocabulary, std::int64_t part_bytes, const UseIds& use);

}  // namespace choir
