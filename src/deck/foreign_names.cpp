#include "choir/deck/foreign_names.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <set>
#include <vector>

#include "choir/core/text.hpp"
#include "deck_tables.hpp"

namespace choir {
namespace {

constexpr std::size_t kMostSettings = 16;  // shown per file
constexpr std::size_t kLongestWord = 32;   // characters of a value that are shown

struct Language {
  const char* ending;
  const char* name;
};
constexpr std::array<Language, 6> kLanguages{{{".py", "Python"},
                                              {".yaml", "YAML"},
                                              {".yml", "YAML"},
                                              {".toml", "TOML"},
                                              {".sh", "a shell script"},
                                              {".cfg", "a configuration of another program"}}};

struct Setting {
  std::string_view name, value;
};

bool is_of_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
}

/// Parses the setting in a line: "batch_size = 12  # of sequences", "max_steps: 3", "--num-layers
/// 24 \". Empty if the line has no name or no value.
Setting setting_of(std::string_view line) {
  line = trim(line);
  if (line.starts_with('#')) return {};
  const bool option = line.starts_with("--");
  line.remove_prefix(std::min(line.find_first_not_of("- "), line.size()));
  const auto end =
      static_cast<std::size_t>(std::ranges::find_if_not(line, is_of_name) - line.begin());
  const std::string_view name = line.substr(0, end);
  line = trim(line.substr(end));
  if (line.starts_with('=') || line.starts_with(':'))
    line.remove_prefix(1);
  else if (!option)
    return {};
  line = trim(line.substr(0, std::min(line.find(" #"), line.find(" \\"))));
  while (line.ends_with(',') || line.ends_with('\\')) line = trim(line.substr(0, line.size() - 1));
  if (line.size() >= 2 && (line.front() == '"' || line.front() == '\'') &&
      line.back() == line.front())
    line = line.substr(1, line.size() - 2);
  if (line.empty() || line.starts_with('{') || line.starts_with('(')) return {};
  return {name, line};
}

/// One line "     batch_size = 12            train.micro_batch_size=12" for each known setting of
/// the text.
std::string translation(std::string_view text) {
  std::string lines;
  std::set<std::string, std::less<>> seen;
  for (const std::string& line : split(text, '\n')) {
    const auto [name, value] = setting_of(line);
    if (name.empty() || seen.size() >= kMostSettings || seen.contains(name)) continue;
    std::string ours = foreign_advice(name);
    if (ours.empty()) continue;
    seen.emplace(name);
    if (ours.find(' ') == std::string::npos)
      ours += fmt::format("={}", value.substr(0, kLongestWord));
    lines += fmt::format("\n     {:<36} {}",
                         fmt::format("{} = {}", name, value.substr(0, kLongestWord)), ours);
  }
  return lines;
}

}  // namespace

std::string foreign_advice(std::string_view name) {
  const std::string folded = fold_name(name);
  const std::string last = folded.substr(folded.rfind('.') + 1);
  static const std::vector<ForeignKey> kForeign = deck::foreign_keys();
  for (const std::string& wanted : {folded, last})
    for (const ForeignKey& foreign : kForeign)
      if (fold_name(foreign.name) == wanted) return foreign.advice;
  return deck::key_by_last_name(last);
}

void refuse_foreign_file(std::string_view text, const std::string& source) {
  const std::string ending = fold_name(std::filesystem::path(source).extension().string());
  const auto* language =
      std::ranges::find_if(kLanguages, [&](const Language& any) { return ending == any.ending; });
  if (language == kLanguages.end()) return;
  // An object of JSON is a deck, whatever the name of its file.
  std::string_view rest = trim(text);
  while (rest.starts_with("//")) rest = trim(rest.substr(std::min(rest.find('\n'), rest.size())));
  if (rest.starts_with('{')) return;
  const std::string known = translation(text);
  throw DeckError(fmt::format("'{}' is {}, and a deck is JSON", source, language->name),
                  known.empty()
                      ? "start from a deck of inputs/; `choir train --describe` lists every key"
                      : "start from a deck of inputs/ and set these keys in it or on the command "
                        "line (legal values\n     may differ: `choir train --describe`):" +
                            known);
}

}  // namespace choir
