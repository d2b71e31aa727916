#pragma once
// Which utterance draw i of a run is, and what training draws from, for people: the folders of a
// blend with their shares of the draws and their tags, and what has been drawn. Pure.
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "choir/core/philox.hpp"
#include "choir/data/speech/speech_mix.hpp"

namespace choir {

/// An utterance that may be drawn.
struct SpeechItem {
  std::int32_t leaf = 0;       ///< folder
  std::int32_t utterance = 0;  ///< of the folder's catalog
  std::int32_t samples = 0;
  std::int32_t labels = 0;
  friend bool operator==(const SpeechItem&, const SpeechItem&) = default;
};

/// An utterance drawn.
struct SpeechRow {
  SpeechItem item;
  std::int64_t epoch = 0;
  friend bool operator==(const SpeechRow&, const SpeechRow&) = default;
};

struct SpeechPoolItems {
  std::vector<SpeechItem> items;  ///< at least one
  double probability = 1;
};

/// The pool of draw i is Philox(seed, i) against the cumulated probabilities; its k-th draw is
/// utterance P_{seed, pool, epoch}(k mod n) of the pool's n in epoch k / n: every pool is endless,
/// with epochs of its own. k counts the draws of the pool before i, so the state is one integer a
/// pool.
class SpeechBlend {
 public:
  SpeechBlend(std::vector<SpeechPoolItems> pools, std::uint64_t seed);

  int pools() const { return static_cast<int>(pools_.size()); }
  const SpeechPoolItems& pool(int p) const { return pools_[static_cast<std::size_t>(p)]; }
  /// Pool of draw i.
  int pool_of(std::int64_t draw) const;
  /// The k-th draw of a pool.
  SpeechRow row(int pool, std::int64_t k) const;
  /// Covers pools, utterances, lengths and the seed: positions in the data hold for these alone.
  std::uint64_t hash() const { return hash_; }

 private:
  std::vector<SpeechPoolItems> pools_;
  std::vector<double> below_;  // cumulated probability up to and with a pool
  PhiloxKey pool_key_;
  std::vector<PhiloxKey> order_keys_;
  std::uint64_t hash_ = 0;
};

/// The seed of the data order. `shard_seed`: "" for the run's seed, an integer for itself, or
/// "randomized" for another one in every attempt of the run. All ranks have the same: they own
/// different parts of one global order, so another seed gives all of them other data, and ranks
/// that share samples (TP, PP) the same. Throws DeckError for another word.
std::uint64_t speech_order_seed(const std::string& shard_seed, std::uint64_t run_seed,
                                std::uint64_t attempt);

struct SpeechSource {
  SpeechLeaf leaf;
  double share = 0;  ///< of the draws, as the blend wants it
  double hours = 0;
  std::int64_t utterances = 0;
};

std::vector<SpeechLeaf> leaves_of(std::span<const SpeechSource> sources);
/// What was blended, without the seed: ", blend 0.75 of 120 utterances + ..."; "" for one pool of
/// folders without limits. Equal for equal shares of equal numbers. `thing`: "utterance".
std::string blend_contents(const SpeechBlend& blend, std::span<const SpeechLeaf> leaves,
                           const char* thing);
/// Keeps `limit` of them, evenly spread, where there are more; 0: all.
void limit_items(std::vector<SpeechItem>& items, std::int64_t limit);

/// One source for every leaf, also for one without utterances.
std::vector<SpeechSource> sources_of(std::span<const SpeechLeaf> leaves, const SpeechBlend& blend,
                                     int sample_rate);
/// "lang=en", sorted; "" for none.
std::string tags_text(const std::map<std::string, std::string>& tags);
/// A line each: "blend 66.67 % 'data/a': 120 utterances, 0.25 hours, tags lang=en".
std::string to_string(std::span<const SpeechSource> sources);
/// "'data/a' 66.1 % (of 66.7 %), 'data/b' ...; by tag: lang=en 66.1 %, ...". `drawn`: utterances of
/// each source. "" where there is one source only, or nothing was drawn.
std::string drawn_text(std::span<const SpeechSource> sources, std::span<const std::int64_t> drawn);

}  // namespace choir
