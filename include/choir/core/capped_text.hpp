#pragma once
// Bounded reading of files that should be small. A file that is too large is refused by its size
// before anything is read; a device has no end, so the text is read in blocks up to the bound.
#include <cstddef>
#include <istream>
#include <string>

namespace choir {

struct CappedText {
  std::string text;
  std::string fault;  ///< "has more than 16 MiB", "cannot be read: ..."; empty: none
};

/// The text of an open file, at most `most_mib` MiB.
CappedText read_capped(std::istream& file, std::size_t most_mib);

enum class Pipes : bool { refused, read };

/// The whole file, at most `most_mib` MiB. Local.
CappedText read_capped_file(const std::string& path, std::size_t most_mib,
                            Pipes pipes = Pipes::refused);

/// "has 21474836480 bytes, more than 16 MiB", or "" if the file is not larger or does not exist.
/// For files that are read line by line. Local.
std::string file_excess(const std::string& path, std::size_t most_mib);

}  // namespace choir
