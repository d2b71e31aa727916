#pragma once
// A micro-batch of token windows, and how stored tokens become one.
#include <cstdint>
#include <span>
#include <vector>

#include "choir/core/tensor.hpp"
#include "choir/data/tokens/sampler.hpp"
#include "choir/data/tokens/token_stream.hpp"

namespace choir {

/// Target of a position that does not count.
inline constexpr std::int32_t kIgnoredTarget = -1;

/// Views of memory owned by whoever made the batch. Padding has input 0 and target kIgnoredTarget.
struct Batch {
  TensorView inputs;              ///< i32 [B, T]
  TensorView targets;             ///< i32 [B, T], kIgnoredTarget where not counted
  std::int64_t micro_batch = 0;   ///< global index
  std::int64_t first_sample = 0;  ///< global index of row 0; rows are consecutive
  std::int64_t valid = 0;         ///< targets that count
};

/// Memory of one batch.
class BatchBuffer {
 public:
  BatchBuffer(std::int64_t rows, std::int64_t block_size);
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
