#pragma once
// The text of a file that should be small. Read in pieces and not "to its end": a device has none.
#include <cstddef>
#include <istream>
#include <string>

namespace choir {

struct CappedText {
  std::string text;
  std::string fault;  ///< "has more than 16 MiB", "cannot be read"; empty: none
};

/// From an open file, at most `most_mib` MiB.
CappedText read_capped(std::istream& file, std::size_t most_mib);

}  // namespace choir
