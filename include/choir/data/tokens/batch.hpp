#pragma once
// Which tokens sample i is made of, and micro-batches of samples. The samplers are pure functions
// of (seed, global sample index): no rank, no thread and no file boundary enters, so every layout
// and every reader sees the same batches, and resuming needs one integer, the number of samples
// consumed.
#include <cstdint>
#include <span>
#include <vector>

#include "choir/core/philox.hpp"
#include "choir/core/tensor.hpp"
#include "choir/data/tokens/token_stream.hpp"

namespace choir {

/// `targets` consecutive (input, target) pairs: needs the tokens [start, start + targets]. 0
/// targets: a row of padding.
struct TokenWindow {
  std::int64_t start = 0;
  std::int64_t targets = 0;
  friend bool operator==(const TokenWindow&, const TokenWindow&) = default;
};

/// Training windows. A stream of N tokens is cut, anew for each epoch, into n windows of T+1
/// tokens; neighbours share one token, the last target of one and the first input of the next:
///   n            = max(1, floor((N - T) / T))           the same in every epoch
///   phase(epoch) = uniform in [0, N - 1 - n*T]          at least T values where N >= 2T
///   start(w)     = phase + w*T,  w in [0, n)            inputs [start, start+T), targets one later
///   sample i     : epoch = i / n, w = P_{seed,epoch}(i mod n), P a Permutation (permutation.hpp)
/// Within an epoch no input position occurs twice; fewer than 2T positions at the two ends are left
/// out, other ones each epoch, as the boundaries move.
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

/// Validation windows: all start(w) = w*T in order, ceil((N-1)/T) of them; the last may be shorter.
class EvalSampler {
 public:
  /// Throws DataError for fewer than two tokens.
  EvalSampler(std::int64_t tokens, std::int64_t block_size);

  std::int64_t windows() const { return windows_; }
  /// Padding from windows() on.
  TokenWindow window(std::int64_t index) const;

 private:
  std::int64_t tokens_, block_size_, windows_;
};

/// Target of a position that does not count.
inline constexpr std::int32_t kIgnoredTarget = -1;

/// Views of memory owned by whoever made the batch. Padding has input 0 and target kIgnoredTarget.
struct Batch {
  TensorView inputs;   ///< i32 [B, T]
  TensorView targets;  ///< i32 [B, T], kIgnoredTarget where not counted
  /// i32 [B, T], of rows of several documents: where the document of each position begins, and its
  /// position there; else empty.
  TensorView begins{}, positions{};
  std::int64_t micro_batch = 0;   ///< global index
  std::int64_t first_sample = 0;  ///< global index of row 0; rows are consecutive
  std::int64_t valid = 0;         ///< targets that count
};

/// Memory of one batch.
class BatchBuffer {
 public:
  /// `packed`: with memory for documents.
  BatchBuffer(std::int64_t rows, std::int64_t block_size, bool packed = false);
  BatchBuffer(const BatchBuffer&) = delete;
  BatchBuffer& operator=(const BatchBuffer&) = delete;
  Batch batch;

 private:
  std::vector<std::int32_t> memory_;
};

/// Fills rows from packed stored tokens: for each window with targets > 0, targets + 1 tokens of
/// `token_bytes`. Throws DataError naming file and position for an id outside [0, vocab_size).
/// `vocab_size` 0 checks nothing.
void fill_batch(const void* packed, int token_bytes, std::span<const TokenWindow> windows,
                std::int64_t vocab_size, const TokenStream& stream, Batch& batch);

/// Random tokens instead of a file: position p of sample s is Philox(seed; s, p / 4)[p mod 4] mod
/// vocab_size; T+1 positions a sample. `stream` separates training from validation.
void fill_synthetic(std::uint64_t seed, std::string_view stream, std::int64_t vocab_size,
                    Batch& batch);

}  // namespace choir
