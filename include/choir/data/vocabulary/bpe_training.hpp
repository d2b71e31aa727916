#pragma once
// Training of a byte-level BPE: the most frequent pair of neighbours in the words of a text becomes
// a new symbol, and this is repeated. Of equally frequent pairs the one with the lowest ids wins
// (the left id is compared first), so the merges depend on the counts alone, neither on the order
// of words nor on the number of ranks that counted them.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/data/vocabulary/byte_level_bpe.hpp"
#include "choir/data/vocabulary/pre_tokenizers.hpp"
#include "choir/data/vocabulary/word_counts.hpp"

namespace choir {

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
