#include "src/core/quantities.hpp"

#include <fmt/core.h>

#include <array>
#include <ctime>
#include <string_view>

namespace choir {

std::string timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &local);
  return text.data();
}

std::string format_duration(double seconds) {
  if (seconds < 1.0) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 60.0) return fmt::format("{:.1f} s", seconds);
  if (!(seconds < 1e15)) return fmt::format("{:.3g} s", seconds);
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  return fmt::format("{}h {:02}m", whole / 3600, whole % 3600 / 60);
}

std::string format_bytes(double bytes) {
  constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024.0 && unit + 1 < kUnits.size()) bytes /= 1024.0, ++unit;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, kUnits[unit]);
}

std::string format_count(std::int64_t value) {
  // The smallest integer cannot be negated.
  const auto bits = static_cast<std::uint64_t>(value);
  std::string digits = std::to_string(value < 0 ? 0 - bits : bits);
  for (auto i = static_cast<std::int64_t>(digits.size()) - 3; i > 0; i -= 3)
    digits.insert(static_cast<std::size_t>(i), ",");
  return value < 0 ? "-" + digits : digits;
}

std::string counted(std::int64_t n, const char* thing) {
  const bool hisses = std::string_view(thing).ends_with("ch");  // "batches"
  return format_count(n) + " " + thing + (hisses && n != 1 ? "es" : plural(n));
}

}  // namespace choir
