#include "choir/data/vocabulary/utf8_stream.hpp"

#include "src/data/vocabulary/utf8.hpp"
#include "src/data/vocabulary/utf8_scan.hpp"

namespace choir {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// The number of invalid bytes at the front that could begin a character, at least one.
std::size_t broken_length(std::string_view text) {
  std::size_t length = 1;
  while (length < text.size() && first_code_point(text.substr(0, length + 1)).incomplete) ++length;
  return length;
}

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
  held_ += bytes;
  std::string text;
  std::string_view left = held_;
  while (!left.empty()) {
    const std::size_t valid = valid_utf8(left);
    text += left.substr(0, valid);
    left.remove_prefix(valid);
    if (left.empty() || first_code_point(left).incomplete) break;
    text += kReplacement;
    left.remove_prefix(broken_length(left));
  }
  held_ = std::string(left);
  return text;
}

std::string Utf8Stream::finish() {
  const bool held = !held_.empty();
  held_.clear();
  return held ? std::string(kReplacement) : std::string();
}

std::string whole_utf8(std::string_view bytes) {
  Utf8Stream stream;
  const std::string text = stream.push(bytes);
  return text + stream.finish();
}

}  // namespace choir
