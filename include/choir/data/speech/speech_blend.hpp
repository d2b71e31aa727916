#pragma once
// Which utterance draw i of a run is. The pool of draw i is Philox(seed, i) against the cumulated
// probabilities; its k-th draw is utterance P_{seed, pool, epoch}(k mod n) of the pool's n in epoch
// k / n: every pool is endless, with epochs of its own. k counts the draws of the pool before i, so
// the state is one integer a pool. Pure.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/core/philox.hpp"

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

class SpeechBlend {
 public:
  SpeechBlend(std::vector<SpeechPoolItems> pools, std::uint64_t seed);

  int pools() const { return static_cast<int>(pools_.size()); }
  const SpeechPoolItems& pool(int p) const { return pools_[static_cast<std::size_t>(p)]; }
  /// Pool of draw i.
  int pool_of(std::int64_t draw) const;
  /// The k-th draw of a pool.
  SpeechRow row(int pool, std::int64_t k) const;
  /// Of pools, utterances, lengths and the seed: what positions in the data are worth anything for.
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

}  // namespace choir
