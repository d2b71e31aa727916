#include "choir/core/capped_text.hpp"

#include <fmt/core.h>

namespace choir {

CappedText read_capped(std::istream& file, std::size_t most_mib) {
  constexpr std::size_t kPiece = std::size_t{1} << 16;
  const std::size_t most = most_mib << 20;
  CappedText read;
  std::string& text = read.text;
  while (file && text.size() <= most) {
    const std::size_t before = text.size();
    text.resize(before + kPiece);
    file.read(text.data() + before, kPiece);
    text.resize(before + static_cast<std::size_t>(file.gcount()));
  }
  if (file.bad()) read.fault = "cannot be read";
  if (text.size() > most) read.fault = fmt::format("has more than {} MiB", most_mib);
  return read;
}

}  // namespace choir
