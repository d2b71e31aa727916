#pragma once
// The form of transcripts: texts in lower case and without punctuation, as recognisers write them,
// and the texts that the units of a recogniser cannot write, with the form that would make them
// writable. A word that cannot be written always counts as an error.
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
/// apostrophes between letters, as '; hyphens, dashes and slashes end a word; every other sign is
/// removed. Text that is not UTF-8 is returned as it is.
std::string without_punctuation(const std::string& text);

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
  /// The command that writes the manifest again in a form in which the vocabulary can write all of
  /// its texts; "" if neither lower case nor the removal of punctuation achieves that.
  std::string command(const std::string& manifest) const;

 private:
  bool writes(const std::string& text) const;

  const Vocabulary* vocabulary_;
  std::int64_t count_ = 0;
  std::set<std::string> characters_;
  bool lower_ = true, plain_ = true, both_ = true;  ///< this form suffices for all texts
};

}  // namespace choir
