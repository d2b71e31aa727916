#include "src/data/vocabulary/bpe_training.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <queue>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/core/error.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/data/vocabulary/byte_level_bpe.hpp"
#include "src/data/vocabulary/utf8.hpp"

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

namespace {

using Pair = std::pair<std::int32_t, std::int32_t>;

struct PairHash {
  std::size_t operator()(const Pair& pair) const {
    const auto key = static_cast<std::uint64_t>(static_cast<std::uint32_t>(pair.first)) << 32 |
                     static_cast<std::uint32_t>(pair.second);
    const std::uint64_t h = key * 0x9E3779B97F4A7C15u;
    return static_cast<std::size_t>(h ^ (h >> 29));
  }
};

struct Word {
  std::vector<std::int32_t> symbols;
  std::int64_t count = 0;
};

/// A pair with its count when it was pushed. After pop, the count is compared with the current one.
struct Frequent {
  std::int64_t count = 0;
  Pair pair;
  bool operator<(const Frequent& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class BpeTrainer {
 public:
  BpeTrainer(const WordCounts& counts, const BpeTraining& training) : training_(training) {
    for (const std::string& token : training.special_tokens) add_entry(token);
    std::array<std::int32_t, 256> ids{};
    for (const unsigned char byte : bytes_by_character())
      ids[byte] = add_entry(std::string(1, static_cast<char>(byte)));
    // The order of words has no influence on the result; sorting gives every machine the same
    // memory layout.
    words_.reserve(counts.size());
    for (const auto& [text, count] : counts) {
      Word word{{}, count};
      for (const char c : text) word.symbols.push_back(ids[static_cast<unsigned char>(c)]);
      words_.push_back(std::move(word));
    }
    std::sort(words_.begin(), words_.end(),
              [](const Word& a, const Word& b) { return a.symbols < b.symbols; });
    for (std::size_t at = 0; at < words_.size(); ++at) {
      add_pairs(words_[at], words_[at].count);
      remember(at, nullptr);
    }
    apply_changes();
  }

  TrainedBpe train() {
    const std::int64_t least = std::max<std::int64_t>(training_.least_count, 1);
    while (std::ssize(result_.entries) < training_.vocab_size && !queue_.empty()) {
      const Frequent top = queue_.top();
      queue_.pop();
      const auto state = pairs_.find(top.pair);
      if (state == pairs_.end()) continue;
      if (state->second.count != top.count) {
        if (state->second.count > 0) queue_.push({state->second.count, top.pair});
        continue;
      }
      if (top.count < least) break;
      merge(top.pair);
    }
    return std::move(result_);
  }

 private:
  struct State {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  ///< indices of words that contain or contained the pair
  };

  /// An existing string keeps its id: two sequences of merges can lead to one entry.
  std::int32_t add_entry(const std::string& bytes) {
    const auto [found, added] =
        ids_.emplace(bytes, static_cast<std::int32_t>(result_.entries.size()));
    if (added) result_.entries.push_back(bytes);
    return found->second;
  }

  void add_pairs(const Word& word, std::int64_t count) {
    for (std::size_t i = 1; i < word.symbols.size(); ++i)
      changes_[{word.symbols[i - 1], word.symbols[i]}] += count;
  }

  /// Adds the word to the lists of its pairs: of all pairs, or only of those that contain `symbol`.
  void remember(std::size_t at, const std::int32_t* symbol) {
    const auto& symbols = words_[at].symbols;
    for (std::size_t i = 1; i < symbols.size(); ++i)
      if (symbol == nullptr || symbols[i - 1] == *symbol || symbols[i] == *symbol) {
        auto& words = pairs_[{symbols[i - 1], symbols[i]}].words;
        if (words.empty() || words.back() != at) words.push_back(static_cast<std::uint32_t>(at));
      }
  }

  void apply_changes() {
    for (const auto& [pair, change] : changes_) {
      if (change == 0) continue;
      State& state = pairs_[pair];
      state.count += change;
      if (change > 0) queue_.push({state.count, pair});
    }
    changes_.clear();
  }

  void merge(const Pair& pair) {
    const std::int32_t left = pair.first, right = pair.second;
    const std::int32_t made = add_entry(result_.entries[static_cast<std::size_t>(left)] +
                                        result_.entries[static_cast<std::size_t>(right)]);
    result_.merges.push_back({left, right, made});
    const auto node = pairs_.extract(pair);
    for (const std::uint32_t at : node.mapped().words) {
      Word& word = words_[at];
      auto& symbols = word.symbols;
      const auto begins = [&](std::size_t i) {
        return i + 1 < symbols.size() && symbols[i] == left && symbols[i + 1] == right;
      };
      std::size_t from = 0;
      while (from < symbols.size() && !begins(from)) ++from;
      if (from == symbols.size()) continue;
      add_pairs(word, -word.count);
      std::size_t to = from;
      while (from < symbols.size()) {
        const bool both = begins(from);
        symbols[to++] = both ? made : symbols[from];
        from += both ? 2 : 1;
      }
      symbols.resize(to);
      add_pairs(word, word.count);
      remember(at, &made);
    }
    changes_.erase(pair);
    apply_changes();
  }

  const BpeTraining& training_;
  TrainedBpe result_;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<Word> words_;
  std::unordered_map<Pair, State, PairHash> pairs_;
  std::unordered_map<Pair, std::int64_t, PairHash> changes_;
  std::priority_queue<Frequent> queue_;
};

std::string in_quotes(std::string_view text) {
  return dumped_safely(nlohmann::json(text));
}

std::string pre_tokenizer_json(Splitter splitter) {
  const auto byte_level = [](bool expression) {
    return fmt::format(R"({{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,)"
                       R"("use_regex":{}}})",
                       expression);
  };
  if (splitter == Splitter::gpt2) return byte_level(true);
  return fmt::format(R"({{"type":"Sequence","pretokenizers":[{{"type":"Split","pattern":)"
                     R"({{"Regex":{}}},"behavior":"Isolated","invert":false}},{}]}})",
                     in_quotes(expression_of(splitter)), byte_level(false));
}

}  // namespace

TrainedBpe train_bpe(const WordCounts& counts, const BpeTraining& training) {
  auto special = training.special_tokens;
  std::sort(special.begin(), special.end());
  const auto names_a_byte = [](const std::string& token) {
    const auto bytes = characters_as_bytes(token);
    return bytes && bytes->size() < 2;
  };
  if (std::adjacent_find(special.begin(), special.end()) != special.end() ||
      std::any_of(special.begin(), special.end(), names_a_byte))
    throw DeckError("special tokens must differ and have more than one character",
                    "for example <|endoftext|>");
  if (const std::int64_t least = 256 + std::ssize(special); training.vocab_size < least)
    throw DeckError(fmt::format("a vocabulary of {} does not hold 256 bytes and {} special tokens",
                                training.vocab_size, special.size()),
                    fmt::format("at least {}", least));
  CHOIR_CHECK(!expression_of(training.splitter).empty(), "digits alone cut no words");
  return BpeTrainer(counts, training).train();
}

std::string tokenizer_json_of(const TrainedBpe& bpe, const BpeTraining& training) {
  const std::size_t specials = training.special_tokens.size();
  std::vector<std::string> names;
  for (std::size_t id = 0; id < bpe.entries.size(); ++id)
    names.push_back(
        in_quotes(id < specials ? bpe.entries[id] : bytes_as_characters(bpe.entries[id])));
  const auto name = [&](std::int32_t id) { return names[static_cast<std::size_t>(id)]; };
  const auto lines = [](const std::vector<std::string>& all) {
    return all.empty() ? std::string() : fmt::format("\n      {}\n    ", join(all, ",\n      "));
  };
  std::vector<std::string> added, vocabulary, merges;
  for (std::size_t id = 0; id < specials; ++id)
    added.push_back(fmt::format(R"({{"id":{},"content":{},"single_word":false,"lstrip":false,)"
                                R"("rstrip":false,"normalized":false,"special":true}})",
                                id, names[id]));
  for (std::size_t id = 0; id < names.size(); ++id)
    vocabulary.push_back(fmt::format("{}: {}", names[id], id));
  for (const BpeMerge& merge : bpe.merges)
    merges.push_back(fmt::format("[{}, {}]", name(merge.left), name(merge.right)));
  return fmt::format(
      R"({{
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": [{}],
  "normalizer": null,
  "pre_tokenizer": {},
  "post_processor": null,
  "decoder": {{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}},
  "model": {{
    "type": "BPE",
    "dropout": null,
    "unk_token": null,
    "continuing_subword_prefix": null,
    "end_of_word_suffix": null,
    "fuse_unk": false,
    "byte_fallback": false,
    "ignore_merges": false,
    "vocab": {{{}}},
    "merges": [{}]
  }}
}}
)",
      lines(added), pre_tokenizer_json(training.splitter), lines(vocabulary), lines(merges));
}

}  // namespace choir
