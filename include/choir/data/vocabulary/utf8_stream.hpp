#pragma once
// Turns bytes that arrive in parts into text of whole characters: a token may end in the middle of
// one.
#include <string>
#include <string_view>

namespace choir {

class Utf8Stream {
 public:
  /// Returns the characters that are complete now. At most three bytes are held back. Bytes that
  /// cannot be UTF-8 become U+FFFD, one for each longest beginning of a character.
  std::string push(std::string_view bytes);
  /// Call it when nothing follows: returns U+FFFD if bytes were held back.
  std::string finish();

 private:
  std::string held_;
};

/// Converts all bytes at once.
std::string whole_utf8(std::string_view bytes);

}  // namespace choir
