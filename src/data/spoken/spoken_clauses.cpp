#include "choir/data/spoken/spoken_clauses.hpp"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <map>
#include <set>

#include "choir/core/text.hpp"

namespace choir {
namespace {

bool in_word(char c) {
  return (c >= 'a' && c <= 'z') || c == '\'' || c == '-';
}

/// Words of every clause. Other characters part words, and those of `kEnds` clauses.
std::vector<std::vector<std::string>> split_clauses(std::string_view book) {
  constexpr std::string_view kEnds = ",.;:!?\n";
  std::vector<std::vector<std::string>> clauses(1);
  std::string word;
  const auto end_word = [&] {
    if (!word.empty()) clauses.back().push_back(std::move(word));
    word.clear();
  };
  for (const char upper : book) {
    const char c = static_cast<char>(std::tolower(static_cast<unsigned char>(upper)));
    if (in_word(c)) {
      word += c;
      continue;
    }
    end_word();
    if (kEnds.find(c) != std::string_view::npos && !clauses.back().empty()) clauses.emplace_back();
  }
  end_word();
  return clauses;
}

std::set<std::string> commonest(const std::vector<std::vector<std::string>>& clauses,
                                std::size_t most) {
  std::map<std::string, std::int64_t> counts;
  for (const auto& clause : clauses)
    for (const std::string& word : clause) ++counts[word];
  std::vector<std::pair<std::string, std::int64_t>> order(counts.begin(), counts.end());
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  if (order.size() > most) order.resize(most);
  std::set<std::string> kept;
  for (const auto& [word, count] : order) kept.insert(word);
  return kept;
}

}  // namespace

std::vector<std::string> spoken_clauses(std::string_view book, const ClauseRule& rule) {
  const auto clauses = split_clauses(book);
  const std::set<std::string> common = commonest(clauses, rule.words);
  std::vector<std::string> kept;
  std::set<std::string> seen;
  for (const auto& clause : clauses) {
    if (!std::all_of(clause.begin(), clause.end(),
                     [&](const std::string& word) { return common.contains(word); }))
      continue;
    const std::string text = join(clause, " ");
    if (text.size() < rule.shortest || text.size() > rule.longest) continue;
    if (seen.insert(text).second) kept.push_back(text);
  }
  return kept;
}

}  // namespace choir
