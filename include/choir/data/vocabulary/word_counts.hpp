#pragma once
// How often each piece of a text occurs: all that training a byte-pair encoding needs to know of
// it. Each rank counts its own part of a corpus, then all counts are summed.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "choir/data/vocabulary/pre_tokenizers.hpp"

namespace choir {

class Communicator;

using WordCounts = std::unordered_map<std::string, std::int64_t>;

/// Local. Adds the pieces of `text` and returns the number of bytes used: when `more_follows` only
/// what is cut the same whatever follows; the rest is to be given again in front of more. Throws
/// DataError where the text is not UTF-8, with the position (plus `base`, the byte offset of `text`
/// in `source`).
std::size_t count_words(const PreTokenizer& pre_tokenizer, std::string_view text, bool more_follows,
                        std::string_view source, std::int64_t base, WordCounts& counts);

/// Collective. On every rank the counts of all ranks.
WordCounts sum_word_counts(Communicator& ranks, const WordCounts& own);

}  // namespace choir
