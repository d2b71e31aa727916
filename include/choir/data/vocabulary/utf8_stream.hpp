#pragma once
// Bytes that come in parts become text of whole characters: a token may end in the middle of one.
#include <string>
#include <string_view>

namespace choir {

class Utf8Stream {
 public:
  /// The characters that are whole now. At most three bytes are held back; what cannot be UTF-8
  /// comes out as U+FFFD, once for each longest beginning of a character.
  std::string push(std::string_view bytes);
  /// What was held back, as U+FFFD, when nothing follows.
  std::string finish();

 private:
  std::string held_;
};

/// All at once.
std::string whole_utf8(std::string_view bytes);

}  // namespace choir
