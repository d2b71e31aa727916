#pragma once
// The form of transcripts: texts in lower case and without punctuation, as recognisers write them,
// and the texts that the units of a recogniser cannot write, with the form that would make them
// writable. A word that cannot be written always counts as an error.
#include <array>
#include <cstdint>
#include <set>
#include <string>

#include "src/data/vocabulary/vocabulary.hpp"

namespace choir {

struct TranscriptForm {
  bool lower_case = false;           ///< see lower_case()
  bool without_punctuation = false;  ///< see without_punctuation()
  /// The text in this form.
  std::string of(const std::string& text) const;
};

/// The text with every letter in lower case, by the rules of Unicode for single letters. Text that
/// is not UTF-8 keeps its bytes. Throws Error on a system without the locale C.UTF-8.
std::string lower_case(const std::string& text);

/// The words of the text, with single blanks between them. Letters, marks and digits stay, and
/// apostrophes between letters, as '; hyphens, dashes and slashes end a word, and so do signs
/// between digits ("3.50" becomes "3 50"); every other sign is removed. Text that is not UTF-8 is
/// returned as it is.
std::string without_punctuation(const std::string& text);

/// True if the text has a sign between digits, which without_punctuation() turns into a blank.
bool parts_numbers(const std::string& text);

/// Collects the texts of a corpus that a vocabulary cannot write.
class UnwritableTexts {
 public:
  /// `vocabulary` must outlive the object.
  explicit UnwritableTexts(const Vocabulary& vocabulary) : vocabulary_(&vocabulary) {}

  /// Counts the text if the vocabulary cannot write it; returns true for such a text.
  bool add(const std::string& text);
  std::int64_t count() const { return count_; }
  /// The characters that the vocabulary lacks, with blanks between them; at most 64.
  std::string characters() const;
  /// The command that writes the manifest again in the form in which the vocabulary can write most
  /// of its texts; "" if neither lower case nor the removal of punctuation makes one writable.
  std::string command(const std::string& manifest) const;
  /// The number of texts that the vocabulary cannot write after command() either.
  std::int64_t remaining() const;

 private:
  /// Lower case, without punctuation, both; by the number of texts that each makes writable.
  static constexpr int kForms = 3;
  static TranscriptForm form(int i) { return {.lower_case = i != 1, .without_punctuation = i > 0}; }
  bool writes(const std::string& text) const;
  /// The first form that makes most texts writable.
  int best() const;

  const Vocabulary* vocabulary_;
  std::int64_t count_ = 0;
  std::set<std::string> characters_;
  std::array<std::int64_t, kForms> solved_{};
};

}  // namespace choir
