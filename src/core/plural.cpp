#include "choir/core/plural.hpp"

#include <string_view>

#include "choir/core/clock.hpp"

namespace choir {

std::string counted(std::int64_t n, const char* thing) {
  const bool hisses = std::string_view(thing).ends_with("ch");  // "batches"
  return format_count(n) + " " + thing + (hisses && n != 1 ? "es" : plural(n));
}

}  // namespace choir
