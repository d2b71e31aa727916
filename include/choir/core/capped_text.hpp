#pragma once
// The text of a file that should be small. It is read in pieces and not "to its end", for a device
// has none, and a file that is too large is refused by its size before anything is read.
#include <cstddef>
#include <istream>
#include <string>

namespace choir {

struct CappedText {
  std::string text;
  std::string fault;  ///< "has more than 16 MiB", "cannot be read: ..."; empty: none
};

/// From an open file, at most `most_mib` MiB.
CappedText read_capped(std::istream& file, std::size_t most_mib);

enum class Pipes : bool { refused, read };

/// Local. The whole file, of at most `most_mib` MiB.
CappedText read_capped_file(const std::string& path, std::size_t most_mib,
                            Pipes pipes = Pipes::refused);

/// Local. "has 21474836480 bytes, more than 16 MiB", or "" if the file is not larger or is missing.
/// It is for files that are read line by line.
std::string file_excess(const std::string& path, std::size_t most_mib);

}  // namespace choir
