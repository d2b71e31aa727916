#include "choir/data/vocabulary/word_counts.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/core/error.hpp"
#include "src/data/vocabulary/utf8_scan.hpp"

namespace choir {
namespace {

/// The rank that sums the counts of a word; equal on all machines, unlike with std::hash.
std::size_t owner_of(std::string_view word, std::size_t ranks) {
  std::uint64_t h = 0xcbf29ce484222325ull;
  for (const char c : word) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return static_cast<std::size_t>((h >> 32) % ranks);
}

struct Heading {
  std::int64_t count = 0;
  std::uint64_t bytes = 0;
};

void append(std::string& packed, const std::string& word, std::int64_t count) {
  const Heading heading{count, word.size()};
  packed.append(reinterpret_cast<const char*>(&heading), sizeof heading);
  packed += word;
}

/// Adds the words of a block up to its padding of zeros.
void add_packed(std::string_view packed, WordCounts& counts) {
  Heading heading;
  while (packed.size() >= sizeof heading) {
    std::memcpy(&heading, packed.data(), sizeof heading);
    if (heading.bytes == 0) break;
    packed.remove_prefix(sizeof heading);
    CHOIR_CHECK(heading.bytes <= packed.size(), "a word of {} bytes in {}", heading.bytes,
                packed.size());
    counts[std::string(packed.substr(0, heading.bytes))] += heading.count;
    packed.remove_prefix(heading.bytes);
  }
}

std::size_t largest(Communicator& ranks, std::size_t bytes) {
  auto most = static_cast<std::int64_t>(bytes);
  ranks.all_reduce(&most, 1, DType::i64, ReduceOp::max);
  return static_cast<std::size_t>(most);
}

}  // namespace

std::size_t count_words(const PreTokenizer& pre_tokenizer, std::string_view text, bool more_follows,
                        std::string_view source, std::int64_t base, WordCounts& counts) {
  text = whole_characters(text, more_follows, source, base);
  std::size_t used = 0;
  std::string word;
  const auto count = [&](std::string_view piece) {
    word = piece;
    ++counts[word];
    used += piece.size();
  };
  if (more_follows) {
    pre_tokenizer.split_part(text, count);
  } else {
    pre_tokenizer.split(text, count);
  }
  return used;
}

// Each rank sums the words that hash to it, so that no rank holds the separate counts of all
// others.
WordCounts sum_word_counts(Communicator& ranks, const WordCounts& own) {
  if (ranks.size() == 1) return own;
  const auto size = static_cast<std::size_t>(ranks.size());
  std::vector<std::string> outgoing(size);
  for (const auto& [word, count] : own) append(outgoing[owner_of(word, size)], word, count);
  std::size_t most = 0;
  for (const std::string& block : outgoing) most = std::max(most, block.size());
  std::size_t block_bytes = largest(ranks, most);
  std::string sent, received(size * block_bytes, '\0');
  for (std::string& block : outgoing) {
    block.resize(block_bytes);
    sent += block;
    block = {};
  }
  ranks.all_to_all(sent.data(), received.data(), block_bytes);

  WordCounts share;
  for (std::size_t rank = 0; rank < size; ++rank)
    add_packed(std::string_view(received).substr(rank * block_bytes, block_bytes), share);
  std::string packed;
  for (const auto& [word, count] : share) append(packed, word, count);
  block_bytes = largest(ranks, packed.size());
  std::string all(size * block_bytes, '\0');
  packed.copy(all.data() + static_cast<std::size_t>(ranks.rank()) * block_bytes, packed.size());
  ranks.all_gather(all.data(), block_bytes, DType::u8);
  WordCounts sums;
  for (std::size_t rank = 0; rank < size; ++rank)
    add_packed(std::string_view(all).substr(rank * block_bytes, block_bytes), sums);
  return sums;
}

}  // namespace choir
