#include "src/core/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "src/core/json_value.hpp"

namespace choir {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the dynamic programme: two back (for swaps), one back, and the current one.
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t differs = a[i - 1] != b[j - 1];
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + differs});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::string nearest_name(std::string_view word, const std::vector<std::string>& names) {
  const std::string folded = fold_name(word);
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, folded.size() / 3) + 1;
  for (const std::string& name : names) {
    const std::size_t longer = std::max(folded.size(), name.size());
    if (longer - std::min(folded.size(), name.size()) >= best_distance) continue;
    const std::size_t distance = edit_distance(folded, fold_name(name));
    if (distance < best_distance && distance < name.size()) best = name, best_distance = distance;
  }
  return best;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += separator;
    text += parts[i];
  }
  return text;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  if (text.empty()) return parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

std::string fold_name(std::string_view name) {
  std::string folded(name);
  for (char& c : folded)
    c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return folded;
}

std::string wrap(std::string_view text, std::size_t width, std::size_t indent) {
  const std::string margin(indent, ' ');
  std::string result, line;
  for (const std::string& word : split(text, ' ')) {
    if (word.empty()) continue;
    if (!line.empty() && indent + line.size() + 1 + word.size() > width) {
      result += margin + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return line.empty() ? result : result + margin + line + "\n";
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

std::string_view print_into(std::span<char> to, fmt::string_view format, fmt::format_args args) {
  const auto written = fmt::vformat_to_n(to.data(), to.size() - 1, format, args);
  *written.out = '\0';
  return {to.data(), written.out};
}

std::uint64_t fnv1a(std::string_view bytes, std::uint64_t h) {
  for (const char c : bytes) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return h;
}

bool is_utf8(const std::string& bytes) {
  try {
    dumped(nlohmann::json(bytes));
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

std::string shown_as_text(const std::string& bytes) {
  return dumped_safely(nlohmann::json(bytes));
}

std::string boolean_meant_by(std::string_view word) {
  const std::string folded = fold_name(word);
  for (const char* yes : {"true", "yes", "on", "y", "1"})
    if (folded == yes) return "true";
  for (const char* no : {"false", "no", "off", "n", "0"})
    if (folded == no) return "false";
  return {};
}

std::string number_meant_by(std::string text, bool integer) {
  const std::size_t comma = text.find(',');
  const bool grouped =
      comma != text.npos && comma > 0 && text[0] != '0' && text.size() - comma >= 4;
  if (comma != text.npos && !grouped) text[comma] = '.';
  std::erase_if(text, [](char c) { return c == '_' || c == ' ' || c == ','; });
  std::string_view digits = text;
  if (digits.starts_with('+')) digits.remove_prefix(1);
  const bool hexadecimal = digits.starts_with("0x");
  if (hexadecimal) digits.remove_prefix(2);
  double number = 0;
  const auto [end, failed] =
      std::from_chars(digits.data(), digits.data() + digits.size(), number,
                      hexadecimal ? std::chars_format::hex : std::chars_format::general);
  if (failed != std::errc() || !std::isfinite(number) || std::abs(number) > 1e15) return {};
  const std::string unit = fold_name(digits.substr(static_cast<std::size_t>(end - digits.data())));
  const std::string_view units = "kmg";
  if (unit.size() > 1 || (unit.size() == 1 && units.find(unit) == units.npos)) return {};
  const int steps = unit.empty() ? 0 : 1 + static_cast<int>(units.find(unit));
  const double decimal = number * std::pow(1000, steps), binary = number * std::pow(1024, steps);
  if (integer && (decimal != std::floor(decimal) || binary != std::floor(binary))) return {};
  const auto written = [&](double value) {
    return integer ? fmt::format("{:.0f}", value) : fmt::format("{}", value);
  };
  return unit.empty()
             ? written(number)
             : fmt::format("{}, or {} if 1024 is meant", written(decimal), written(binary));
}

}  // namespace choir
