#include "src/data/metrics/edit_distance.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "choir/core/error.hpp"
#include "src/data/vocabulary/utf8.hpp"

namespace choir {
namespace {

enum class Edit : unsigned char { match, substitution, deletion, insertion };

std::vector<std::int32_t> characters_of(std::string_view text) {
  std::vector<std::int32_t> characters;
  for (const std::string_view word : split_at_blanks(text)) {
    if (!characters.empty()) characters.push_back(' ');
    append_code_points(characters, word);
  }
  return characters;
}

}  // namespace

double EditCounts::rate() const {
  if (reference() > 0) return static_cast<double>(edits()) / static_cast<double>(reference());
  return insertions == 0 ? 0 : std::numeric_limits<double>::infinity();
}

EditCounts& EditCounts::operator+=(const EditCounts& other) {
  insertions += other.insertions, deletions += other.deletions;
  substitutions += other.substitutions, correct += other.correct;
  utterances += other.utterances, exact += other.exact;
  return *this;
}

std::vector<std::int64_t> EditCounts::integers() const {
  return {insertions, deletions, substitutions, correct, utterances, exact};
}

EditCounts EditCounts::of_integers(std::span<const std::int64_t> n) {
  CHOIR_CHECK(n.size() == EditCounts().integers().size(), "{} integers are no edits", n.size());
  return {n[0], n[1], n[2], n[3], n[4], n[5]};
}

EditCounts edit_counts(std::span<const std::int32_t> reference,
                       std::span<const std::int32_t> hypothesis) {
  const std::size_t rows = reference.size(), columns = hypothesis.size();
  std::vector<std::int64_t> above(columns + 1), row(columns + 1);
  std::vector<Edit> last((rows + 1) * (columns + 1), Edit::insertion);  // of the best alignment
  for (std::size_t j = 0; j <= columns; ++j) above[j] = static_cast<std::int64_t>(j);
  for (std::size_t i = 1; i <= rows; ++i) {
    row[0] = static_cast<std::int64_t>(i);
    last[i * (columns + 1)] = Edit::deletion;
    for (std::size_t j = 1; j <= columns; ++j) {
      const bool same = reference[i - 1] == hypothesis[j - 1];
      std::int64_t best = above[j - 1] + (same ? 0 : 1);
      Edit edit = same ? Edit::match : Edit::substitution;
      if (above[j] + 1 < best) best = above[j] + 1, edit = Edit::deletion;
      if (row[j - 1] + 1 < best) best = row[j - 1] + 1, edit = Edit::insertion;
      row[j] = best, last[i * (columns + 1) + j] = edit;
    }
    std::swap(above, row);
  }
  EditCounts counts{.utterances = 1};
  for (std::size_t i = rows, j = columns; i > 0 || j > 0;) {
    const Edit edit = last[i * (columns + 1) + j];
    counts.correct += edit == Edit::match;
    counts.substitutions += edit == Edit::substitution;
    counts.deletions += edit == Edit::deletion;
    counts.insertions += edit == Edit::insertion;
    if (edit != Edit::insertion) --i;
    if (edit != Edit::deletion) --j;
  }
  counts.exact = counts.edits() == 0;
  return counts;
}

std::vector<std::pair<std::string, std::int64_t>> EditCounts::by_name(
    const std::string& unit, const std::string& prefix) const {
  return {{unit, reference()},
          {prefix + "insertions", insertions},
          {prefix + "deletions", deletions},
          {prefix + "substitutions", substitutions}};
}

EditCounts word_edits(std::string_view reference, std::string_view hypothesis) {
  std::map<std::string_view, std::int32_t> numbers;
  const auto number = [&numbers](std::string_view text) {
    std::vector<std::int32_t> ids;
    for (const std::string_view word : split_at_blanks(text))
      ids.push_back(
          numbers.try_emplace(word, static_cast<std::int32_t>(numbers.size())).first->second);
    return ids;
  };
  const std::vector<std::int32_t> wanted = number(reference), heard = number(hypothesis);
  return edit_counts(wanted, heard);
}

EditCounts character_edits(std::string_view reference, std::string_view hypothesis) {
  return edit_counts(characters_of(reference), characters_of(hypothesis));
}

std::string to_string(const EditCounts& counts, std::string_view unit) {
  const auto of = [](std::int64_t n, std::string_view plural) {
    return fmt::format("{} {}", n, plural.substr(0, plural.size() - (n == 1)));
  };
  return fmt::format("{:.2f} % ({}, {}, {}, {})", 100 * counts.rate(),
                     of(counts.insertions, "insertions"), of(counts.deletions, "deletions"),
                     of(counts.substitutions, "substitutions"), of(counts.reference(), unit));
}

}  // namespace choir
