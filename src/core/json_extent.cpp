#include "choir/core/json_extent.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

namespace choir {
namespace {

constexpr int kDeepest = 64;
constexpr std::int64_t kMostKeys = 10000;

/// The place behind the string that begins at `at`.
std::size_t past_string(std::string_view text, std::size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at)
    if (text[at] == '\\') ++at;
  return at + 1;
}

}  // namespace

JsonExtent json_extent(std::string_view text) {
  JsonExtent extent;
  std::array<std::int64_t, kDeepest + 1> keys{};  // of the object that is open on each level
  int level = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') at = past_string(text, at) - 1;
    if (c == '[' || c == '{') {
      extent.depth = std::max(extent.depth, ++level);
      if (level <= kDeepest) keys[static_cast<std::size_t>(level)] = 0;
    }
    if ((c == ']' || c == '}') && level > 0) --level;
    if (c == ':' && level <= kDeepest)
      extent.keys = std::max(extent.keys, ++keys[static_cast<std::size_t>(level)]);
  }
  return extent;
}

std::string json_excess(std::string_view text) {
  const JsonExtent extent = json_extent(text);
  if (extent.depth > kDeepest) return fmt::format("nested deeper than {} levels", kDeepest);
  if (extent.keys > kMostKeys)
    return fmt::format("{} keys in one object, more than {}", extent.keys, kMostKeys);
  return {};
}

}  // namespace choir
