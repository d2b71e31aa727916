#pragma once
// Word and character error rates as counts over a corpus. Pure functions on host memory.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace choir {

/// Edits that turn references into hypotheses, over any number of utterances. All members are sums,
/// so counts of several ranks are added member by member.
struct EditCounts {
  std::int64_t insertions = 0, deletions = 0, substitutions = 0;
  std::int64_t correct = 0;     ///< units of the references that the hypotheses contain
  std::int64_t utterances = 0;  ///< pairs compared
  std::int64_t exact = 0;       ///< pairs without an edit

  std::int64_t edits() const { return insertions + deletions + substitutions; }
  /// Units of the references.
  std::int64_t reference() const { return correct + deletions + substitutions; }
  /// Edits per reference unit of the whole corpus, not a mean over utterances; above 1 with many
  /// insertions. Without any reference unit it is 0 if nothing was inserted, else infinite.
  double rate() const;
  EditCounts& operator+=(const EditCounts& other);
  /// The members in order, for sums over ranks: of_integers() of summed integers() gives the sum.
  std::vector<std::int64_t> integers() const;
  static EditCounts of_integers(std::span<const std::int64_t> integers);
  /// The units of the references under the name `unit`, and the edits by their kinds, each name
  /// with `prefix` in front: "words", "insertions", "deletions", "substitutions".
  std::vector<std::pair<std::string, std::int64_t>> by_name(const std::string& unit,
                                                            const std::string& prefix) const;
  friend bool operator==(const EditCounts&, const EditCounts&) = default;
};

/// Counts of the alignment with the fewest edits (Levenshtein 1966). Among equally short alignments
/// it takes the one that, traced from the end, prefers a match or substitution, then a deletion,
/// then an insertion, so that the counts are a function of the inputs. Needs reference x hypothesis
/// bytes of memory.
EditCounts edit_counts(std::span<const std::int32_t> reference,
                       std::span<const std::int32_t> hypothesis);
/// Edits of words, which are separated by white space (space, tab, line ends). Case and punctuation
/// count.
EditCounts word_edits(std::string_view reference, std::string_view hypothesis);
/// Edits of UTF-8 code points. White space at both ends is ignored, and inside the text it counts
/// as one space. An invalid byte is a unit of its own, different from every code point.
EditCounts character_edits(std::string_view reference, std::string_view hypothesis);

/// "4.31 % (12 insertions, 30 deletions, 101 substitutions, 3318 words)"; `unit`: "words".
std::string to_string(const EditCounts& counts, std::string_view unit);

}  // namespace choir
