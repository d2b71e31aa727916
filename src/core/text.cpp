#include "src/core/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

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

}  // namespace choir
