#pragma once
// The blend that training draws utterances from: the utterance of each draw, and a report of the
// folders with their shares, tags and counts of draws. Pure.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "choir/core/philox.hpp"
#include "src/data/sampling/mix.hpp"

namespace choir {

/// An utterance that may be drawn.
struct SpeechItem {
  std::int32_t leaf = 0;       ///< index of the folder
  std::int32_t utterance = 0;  ///< index in the catalog of the folder
  std::int32_t samples = 0;
  std::int32_t labels = 0;
  friend bool operator==(const SpeechItem&, const SpeechItem&) = default;
};

/// A drawn utterance.
struct SpeechRow {
  SpeechItem item;
  std::int64_t epoch = 0;
  friend bool operator==(const SpeechRow&, const SpeechRow&) = default;
};

struct SpeechPoolItems {
  std::vector<SpeechItem> items;  ///< at least one
  double probability = 1;
};

/// The pool of draw i is Philox(seed, i) against the cumulative probabilities. Draw k of a pool is
/// utterance P_{seed, pool, epoch}(k mod n) of its n utterances in epoch k / n, so every pool is
/// endless and has epochs of its own. k counts the earlier draws of the pool, so the state is one
/// integer per pool.
class SpeechBlend {
 public:
  SpeechBlend(std::vector<SpeechPoolItems> pools, std::uint64_t seed);

  int pools() const { return static_cast<int>(pools_.size()); }
  const SpeechPoolItems& pool(int p) const { return pools_[static_cast<std::size_t>(p)]; }
  /// The pool of a draw.
  int pool_of(std::int64_t draw) const;
  /// The k-th draw of a pool.
  SpeechRow row(int pool, std::int64_t k) const;
  /// Hash of pools, utterances, lengths and seed. A position in the data is valid only for equal
  /// hashes.
  std::uint64_t hash() const { return hash_; }

 private:
  std::vector<SpeechPoolItems> pools_;
  std::vector<double> below_;  // cumulative probability up to and including a pool
  PhiloxKey pool_key_;
  std::vector<PhiloxKey> order_keys_;
  std::uint64_t hash_ = 0;
};

/// The seed of the data order. `shard_seed` is "" for the seed of the run, an integer for that
/// seed, or "randomized" for another seed in every attempt of the run. All ranks use the same seed:
/// they own different parts of one global order, so another seed gives all of them other data, and
/// ranks that share samples (TP, PP) still get the same data. Throws DeckError for any other value.
std::uint64_t speech_order_seed(const std::string& shard_seed, std::uint64_t run_seed,
                                std::uint64_t attempt);

struct SpeechSource {
  SpeechLeaf leaf;
  double share = 0;  ///< share of the draws that the blend requests
  double hours = 0;
  std::int64_t utterances = 0;
};

std::vector<SpeechLeaf> leaves_of(std::span<const SpeechSource> sources);
/// Describes the blend without its seed: ", blend 0.75 of 120 utterances + ..."; "" for a single
/// pool of folders without limits. Equal for equal shares of equal counts. `thing` is a noun, for
/// example "utterance".
std::string blend_contents(const SpeechBlend& blend, std::span<const SpeechLeaf> leaves,
                           const char* thing);
/// Reduces `items` to `limit` evenly spread ones if there are more; a limit of 0 keeps all.
void limit_items(std::vector<SpeechItem>& items, std::int64_t limit);

/// Returns one source per leaf, including leaves without utterances.
std::vector<SpeechSource> sources_of(std::span<const SpeechLeaf> leaves, const SpeechBlend& blend,
                                     int sample_rate);
/// Formats tags, sorted: "lang=en"; "" without tags.
std::string tags_text(const std::map<std::string, std::string>& tags);
/// Returns a line per source: "blend 66.67 % 'data/a': 120 utterances, 0.25 hours, tags lang=en".
std::string to_string(std::span<const SpeechSource> sources);
/// Returns "'data/a' 66.1 % (of 66.7 %), 'data/b' ...; by tag: lang=en 66.1 %, ...". `drawn` counts
/// the drawn utterances of each source. Returns "" if there is a single source, or if nothing was
/// drawn.
std::string drawn_text(std::span<const SpeechSource> sources, std::span<const std::int64_t> drawn);

}  // namespace choir
