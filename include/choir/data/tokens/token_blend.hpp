#pragma once
// Training samples of several texts in given shares. Which text sample i is of is a function of
// (seed, i), and each pool of texts has epochs of its own.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "choir/core/philox.hpp"
#include "choir/data/tokens/batch.hpp"

namespace choir {

/// Texts next to each other that share epochs, and how often one of their windows is drawn.
struct TokenPool {
  std::vector<int> texts;  ///< ascending, without gaps
  double probability = 1;
  std::int64_t limit = 0;  ///< of a single text: its first so many tokens; 0: all
};

class TokenBlend {
 public:
  /// `names` and `tokens`: of each text; they lie one after another in the stream. A blend of one
  /// pool is Sampler(its tokens, block_size, seed). Throws DataError for a pool of fewer than
  /// block_size + 1 tokens.
  TokenBlend(std::span<const TokenPool> pools, std::span<const std::string> names,
             std::span<const std::int64_t> tokens, std::int64_t block_size, std::uint64_t seed);

  /// Window of the whole stream. Remembers how much was drawn; one thread at a time.
  TokenWindow window(std::int64_t sample);
  /// Which pool sample `sample` is drawn from. Pure.
  int pool_of(std::int64_t sample) const;

  int pools() const { return static_cast<int>(pools_.size()); }
  double share(int pool) const { return pools_[static_cast<std::size_t>(pool)].share; }
  std::int64_t windows_per_epoch() const;  ///< of all pools together
  /// What was blended, without the seed; "" for one pool without a limit. Equal for equal shares
  /// of equal lengths.
  std::string contents() const;
  /// "blend 75.00 % 'data/a': 1,234 tokens", a line a pool; "" for one pool.
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
  bool limited_ = false;       ///< some text has a limit
  std::vector<double> below_;  ///< sums of shares
  PhiloxKey pool_key_;
  /// Draws of each pool before sample kStride, 2 kStride, ..., as far as was asked for.
  std::vector<std::vector<std::int64_t>> drawn_;
};

}  // namespace choir
