#pragma once
// Word and character error rates as counts over a corpus. Pure functions on host memory.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace choir {

/// Edits that turn references into hypotheses, over any number of utterances. All members are sums,
/// so that counts of ranks may be added up member by member.
struct EditCounts {
  std::int64_t insertions = 0, deletions = 0, substitutions = 0;
  std::int64_t correct = 0;     ///< units of the references found again
  std::int64_t utterances = 0;  ///< pairs compared
  std::int64_t exact = 0;       ///< of them without an edit

  std::int64_t edits() const { return insertions + deletions + substitutions; }
  /// Units of the references.
  std::int64_t reference() const { return correct + deletions + substitutions; }
  /// edits / reference units, of the whole corpus (not a mean over utterances; above 1 with many
  /// insertions). Without any reference unit: 0 if nothing was inserted, else infinite.
  double rate() const;
  EditCounts& operator+=(const EditCounts& other);
  friend bool operator==(const EditCounts&, const EditCounts&) = default;
};

/// The fewest edits (Levenshtein 1966). Of alignments with as few, the one found from the end that
/// prefers a match or substitution, then a deletion, then an insertion; so the counts are one
/// function of the inputs. Memory: reference x hypothesis bytes.
EditCounts edit_counts(std::span<const std::int32_t> reference,
                       std::span<const std::int32_t> hypothesis);
/// Words: what white space (space, tab, line ends) divides. Case and punctuation count.
EditCounts word_edits(std::string_view reference, std::string_view hypothesis);
/// UTF-8 code points, white space at both ends left out, within the text one space. A byte that is
/// no UTF-8 is a unit of its own, other than every code point.
EditCounts character_edits(std::string_view reference, std::string_view hypothesis);

/// "4.31 % (12 insertions, 30 deletions, 101 substitutions, 3318 words)"; `unit`: "words".
std::string to_string(const EditCounts& counts, std::string_view unit);

}  // namespace choir
