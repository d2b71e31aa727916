#pragma once
// Training of a byte-level BPE from the counts of the pieces of a text. Each rank counts its own
// part of a corpus; then the counts are summed over the ranks. The most frequent pair of neighbours
// in the pieces becomes a new symbol, and this is repeated. Of equally frequent pairs the one with
// the lowest ids wins (the left id is compared first), so the merges depend on the counts alone,
// neither on the order of pieces nor on the number of ranks that counted them.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/data/vocabulary/byte_level_bpe.hpp"
#include "src/data/vocabulary/pre_tokenizers.hpp"

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

struct BpeTraining {
  std::int32_t vocab_size = 0;           ///< upper limit; includes special tokens and the 256 bytes
  std::int64_t least_count = 2;          ///< rarer pairs are not merged
  Splitter splitter = Splitter::llama3;  ///< the splitter that cut the text into words
  std::vector<std::string> special_tokens = {"<|endoftext|>"};
};

struct TrainedBpe {
  /// The bytes of each id: special tokens, single bytes in the order of their characters, merges.
  std::vector<std::string> entries;
  std::vector<BpeMerge> merges;
};

/// Local. Equal counts give equal results on every rank. Throws DeckError if `vocab_size` does not
/// hold the bytes and the special tokens, or if special tokens are empty or equal.
TrainedBpe train_bpe(const WordCounts& counts, const BpeTraining& training);

/// The tokenizer.json of the result, which Hugging Face's library reads, too.
std::string tokenizer_json_of(const TrainedBpe& bpe, const BpeTraining& training);

}  // namespace choir
