#pragma once
// The batches of `choir verify`: random tokens as a function of the global sample. The number of
// targets in each sample is random and may be 0, so that ranks have different numbers of them. For
// packed models documents have random lengths.
#include <cstdint>
#include <vector>

#include "choir/core/philox.hpp"
#include "choir/models/synthetic_batches.hpp"

namespace choir {

class SyntheticTokens final : public SyntheticBatches {
 public:
  /// Micro-batches of `rows` sequences of `tokens` tokens below `vocabulary`.
  SyntheticTokens(std::uint64_t seed, std::int64_t rows, std::int64_t tokens,
                  std::int64_t vocabulary, bool packed = false);

  /// The micro-batch of this global index; valid until the next call.
  ModelBatch micro_batch(std::int64_t index) override;
  BatchShape shape(std::int64_t) const override { return {.samples = rows_, .tokens = tokens_}; }
  ByTerm targets(std::int64_t first, std::int64_t count) const override {
    return static_cast<double>(valid(first * rows_, count * rows_));
  }
  /// Targets that are not masked in samples [first, first + count).
  std::int64_t valid(std::int64_t first, std::int64_t count) const;

 private:
  /// Number of first targets of a sample that are not masked.
  std::int64_t length(std::int64_t sample) const;

  void write_documents(std::int64_t sample, std::int64_t row);

  PhiloxKey tokens_key_, length_key_, documents_key_;
  std::int64_t rows_, tokens_, vocabulary_;
  std::vector<std::int32_t> inputs_, targets_, begins_, positions_;
};

}  // namespace choir
