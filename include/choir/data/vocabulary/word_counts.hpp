#pragma once
// Counts of the pieces of a text, the only input of the training of a byte-pair encoding. Each rank
// counts its own part of a corpus; then the counts are summed over the ranks.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "choir/data/vocabulary/pre_tokenizers.hpp"

namespace choir {

class Communicator;

using WordCounts = std::unordered_map<std::string, std::int64_t>;

/// Local. Adds the pieces of `text` and returns the number of bytes used. With `more_follows` only
/// the pieces that do not depend on the following text are counted; the caller gives the other
/// bytes again in front of the next text. Throws DataError where the text is not UTF-8, with the
/// position (plus `base`, the byte offset of `text` in `source`).
std::size_t count_words(const PreTokenizer& pre_tokenizer, std::string_view text, bool more_follows,
                        std::string_view source, std::int64_t base, WordCounts& counts);

/// Collective. Returns the sums over all ranks on every rank.
WordCounts sum_word_counts(Communicator& ranks, const WordCounts& own);

}  // namespace choir
