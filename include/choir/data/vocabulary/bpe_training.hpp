#pragma once
// A byte-level BPE of one's own: the pair of neighbours that is most frequent in the words of a
// text becomes a symbol, again and again. Ties go to the pair of the lowest ids, first the left
// one, so the merges depend on nothing but the counts: not on the order of words, nor on the number
// of ranks that counted them.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/data/vocabulary/byte_level_bpe.hpp"
#include "choir/data/vocabulary/pre_tokenizers.hpp"
#include "choir/data/vocabulary/word_counts.hpp"

namespace choir {

struct BpeTraining {
  std::int32_t vocab_size = 0;           ///< at most; with the special tokens and the 256 bytes
  std::int64_t least_count = 2;          ///< rarer pairs are not merged
  Splitter splitter = Splitter::llama3;  ///< that cut the text into the words
  std::vector<std::string> special_tokens = {"<|endoftext|>"};
};

struct TrainedBpe {
  /// By id: special tokens, bytes in the order of their characters, what the merges made.
  std::vector<std::string> entries;
  std::vector<BpeMerge> merges;
};

/// Local, and equal on every rank that gets the same counts. Throws DeckError for a size that does
/// not hold the bytes and special tokens, or for special tokens that are empty or the same.
TrainedBpe train_bpe(const WordCounts& counts, const BpeTraining& training);

/// The tokenizer.json of it, which Hugging Face's library reads, too.
std::string tokenizer_json_of(const TrainedBpe& bpe, const BpeTraining& training);

}  // namespace choir
