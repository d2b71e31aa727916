#pragma once
// Samples of token streams and micro-batches of them: the tokens of sample i, blends of several
// texts in given shares, and the memory of micro-batches. The samplers are pure functions of (seed,
// global sample index): they do not depend on ranks, threads or file boundaries, so every layout
// and every reader gets the same batches, and resuming needs one integer, the number of samples
// consumed. In a blend, the text of sample i is a function of (seed, i), and each pool of texts has
// epochs of its own.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "choir/core/philox.hpp"
#include "choir/core/tensor.hpp"
#include "src/data/text/token_stream.hpp"

namespace choir {

/// A window of `targets` consecutive (input, target) pairs, which needs the tokens [start, start +
/// targets]. A window with 0 targets is a row of padding.
struct TokenWindow {
  std::int64_t start = 0;
  std::int64_t targets = 0;
  friend bool operator==(const TokenWindow&, const TokenWindow&) = default;
};

/// Training windows. For each epoch a stream of N tokens is cut anew into n windows of T+1 tokens;
/// neighbours share one token, the last target of one and the first input of the next:
///   n            = max(1, floor((N - T) / T))           the same in every epoch
///   phase(epoch) = uniform in [0, N - 1 - n*T]          at least T values where N >= 2T
///   start(w)     = phase + w*T,  w in [0, n)            inputs [start, start+T), targets one later
///   sample i     : epoch = i / n, w = P_{seed,epoch}(i mod n), P a Permutation (permutation.hpp)
/// Within an epoch no input position occurs twice. Fewer than 2T positions at the two ends are left
/// out; the boundaries move, so these are others in each epoch.
class Sampler {
 public:
  /// Throws DataError for fewer than block_size + 1 tokens.
  Sampler(std::int64_t tokens, std::int64_t block_size, std::uint64_t seed);

  std::int64_t windows_per_epoch() const { return windows_; }
  std::int64_t epoch_of(std::int64_t sample) const { return sample / windows_; }
  std::int64_t phase(std::int64_t epoch) const;
  TokenWindow window(std::int64_t sample) const;

 private:
  std::int64_t tokens_, block_size_, windows_;
  PhiloxKey order_key_, phase_key_;
};

/// Validation windows: all start(w) = w*T in order, ceil((N-1)/T) windows; the last may be shorter.
class EvalSampler {
 public:
  /// Throws DataError for fewer than two tokens.
  EvalSampler(std::int64_t tokens, std::int64_t block_size);

  std::int64_t windows() const { return windows_; }
  /// The window at an index; a row of padding from windows() on.
  TokenWindow window(std::int64_t index) const;

 private:
  std::int64_t tokens_, block_size_, windows_;
};

/// The target of a position that is excluded from the loss.
inline constexpr std::int32_t kIgnoredTarget = -1;

/// A micro-batch: views of memory that a BatchBuffer or another owner holds. Padding has input 0
/// and target kIgnoredTarget.
struct Batch {
  TensorView inputs;   ///< i32 [B, T]
  TensorView targets;  ///< i32 [B, T], kIgnoredTarget for excluded positions
  /// i32 [B, T], for rows of several documents: the begin of the document of each position, and the
  /// position within it; else empty.
  TensorView begins{}, positions{};
  /// Addresses of the rows in device memory, i32 [T] each, if the tokens are there
  /// (ResidentSource): inputs and targets then have no data. Else nullptr.
  const std::byte* const* resident_inputs = nullptr;
  const std::byte* const* resident_targets = nullptr;
  const std::byte* resident_input_padding = nullptr;   ///< i32 [T], zeros
  const std::byte* resident_target_padding = nullptr;  ///< i32 [T], kIgnoredTarget
  const std::byte** row_addresses = nullptr;           ///< memory of these addresses, [2, B]
  std::int64_t micro_batch = 0;                        ///< global index
  std::int64_t first_sample = 0;  ///< global index of row 0; rows are consecutive
  std::int64_t valid = 0;         ///< targets that are not kIgnoredTarget
};

/// Memory of one batch.
class BatchBuffer {
 public:
  /// With `packed`, it has memory for the positions of documents.
  BatchBuffer(std::int64_t rows, std::int64_t block_size, bool packed = false);
  BatchBuffer(const BatchBuffer&) = delete;
  BatchBuffer& operator=(const BatchBuffer&) = delete;
  Batch batch;

 private:
  std::vector<const std::byte*> rows_;
  std::vector<std::int32_t> memory_;
};

/// Fills rows from packed stored tokens: targets + 1 tokens of `token_bytes` for each window with
/// targets > 0. Throws DataError naming file and position for an id outside [0, vocab_size). With
/// `vocab_size` 0 ids are not checked.
void fill_batch(const void* packed, int token_bytes, std::span<const TokenWindow> windows,
                std::int64_t vocab_size, const TokenStream& stream, Batch& batch);

/// Widens stored tokens [first, first + count) of a stream. Throws DataError as fill_batch does.
void widen_tokens(const void* packed, const TokenStream& stream, std::int64_t first,
                  std::int64_t count, std::int64_t vocab_size, std::int32_t* to);

/// Fills rows with random tokens: position p of sample s is Philox(seed; s, p / 4)[p mod 4] mod
/// vocab_size, for T+1 positions per sample. `stream` separates training from validation.
void fill_synthetic(std::uint64_t seed, std::string_view stream, std::int64_t vocab_size,
                    Batch& batch);

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
