#pragma once
// How deep and how wide a JSON text is, found before it is parsed: the library copies, prints and
// looks up trees with a call a level and, where the order of keys is kept, a comparison a key. A
// text made to hurt is thus refused before it can use up the stack or hours.
#include <cstdint>
#include <string>
#include <string_view>

namespace choir {

struct JsonExtent {
  int depth = 0;          ///< lists and objects within each other
  std::int64_t keys = 0;  ///< most in one object
};

/// Judges a text that need not be JSON; then at least the part before its first error. Pure, one
/// pass, nothing is allocated for a depth below 64 (deeper levels are counted, not their keys).
JsonExtent json_extent(std::string_view text);

/// "" for a text that may be parsed, else what is wrong with it: deeper than 64 levels, or more
/// than 10,000 keys in one object.
std::string json_excess(std::string_view text);

}  // namespace choir
