#pragma once
// Training samples of several texts in given shares. The text of sample i is a function of (seed,
// i), and each pool of texts has epochs of its own.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "choir/core/philox.hpp"
#include "choir/data/tokens/batch.hpp"

namespace choir {

/// Consecutive texts that share epochs, and the probability that one of their windows is drawn.
struct TokenPool {
  std::vector<int> texts;  ///< ascending, without gaps
  double probability = 1;
  std::int64_t limit = 0;  ///< tokens used from the start of a single text; 0: all
};

class TokenBlend {
 public:
  /// `names` and `tokens` describe the texts, which follow one another in the stream. A blend of
  /// one pool is equal to Sampler(its tokens, block_size, seed). Throws DataError for a pool of
  /// fewer than block_size + 1 tokens.
  TokenBlend(std::span<const TokenPool> pools, std::span<const std::string> names,
             std::span<const std::int64_t> tokens, std::int64_t block_size, std::uint64_t seed);

  /// The window of a sample in the whole stream. It caches counts of draws, so only one thread at a
  /// time may call it.
  TokenWindow window(std::int64_t sample);
  /// The pool that a sample is drawn from. Pure.
  int pool_of(std::int64_t sample) const;

  int pools() const { return static_cast<int>(pools_.size()); }
  double share(int pool) const { return pools_[static_cast<std::size_t>(pool)].share; }
  std::int64_t windows_per_epoch() const;  ///< windows of all pools together
  /// Describes the blend without its seed; "" for a single pool without a limit. Equal for equal
  /// shares of equal lengths.
  std::string contents() const;
  /// Returns a line per pool, "blend 75.00 % 'data/a': 1,234 tokens"; "" for one pool.
  std::string to_string() const;

 private:
  struct Pool {
    std::string texts;
    std::int64_t first = 0, tokens = 0;
    double share = 0;
    Sampler sampler;
  };
  std::int64_t drawn_before(std::int64_t sample, int pool);

  std::vector<Pool> pools_;
  bool limited_ = false;       ///< true if some text has a limit
  std::vector<double> below_;  ///< cumulative shares
  PhiloxKey pool_key_;
  /// Draws of each pool before sample 0, kStride, 2 kStride, ..., as far as they were needed.
  std::vector<std::vector<std::int64_t>> drawn_;
};

}  // namespace choir
