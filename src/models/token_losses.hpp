#pragma once
// Losses of tokens for ranges of the rows of a pass, and the head in chunks of rows.

#include "choir/models/logits.hpp"
#include "choir/nn/layers/linear.hpp"
#include "kernels/cross_entropy/cross_entropy.hpp"

namespace choir {

/// Computes token_losses() range by range. Its memory is allocated once, so that the number of
/// requests to the arena does not depend on the number of ranges.
class TokenLosses {
 public:
  /// Ranges have at most `most_rows` rows. The arguments must outlive this object.
  TokenLosses(Pass& pass, const ModelBatch& batch, const TokenTargets& of, std::int64_t most_rows);
  /// Collective over the tensor axis. `logits` [n, V' / ranks] are those of rows [first, first +
  /// n); with `write_gradient` their gradient overwrites them.
  void compute(const TensorView& logits, std::int64_t first, bool write_gradient);
  /// Adds the losses of all rows, once they were computed, to their terms of the loss.
  void add_to_loss() const;
  /// The result of token_losses(), once all rows were computed.
  const Tensor& losses() const { return losses_; }

 private:
  void compute_parallel(ops::ParallelCrossEntropy call);

  Pass& pass_;
  const ModelBatch& batch_;
  const TokenTargets& of_;
  Tensor losses_;
  Tensor local_maxima_, maxima_, sums_;  ///< only if ranks divide the vocabulary
};

/// Rows of a chunk if the deck leaves the choice to the program: as many as have 256 MiB of logits
/// over the whole vocabulary, rounded down to a multiple of 128, but at least 1024, because every
/// chunk reads the whole weight twice and its gradient once. Neither the layout nor the batch
/// matters, so that reproducible runs have the same sums in all layouts. 0 for a vocabulary that is
/// too small for chunks to save memory.
std::int64_t usual_head_chunk(std::int64_t vocabulary, DType logits);

/// Collective over the tensor axis. token_losses() of the logits of `head`, which are computed in
/// chunks of `chunk` rows; only those of one chunk are in memory. `rows` [B*T, C], or this rank's
/// share of them. If the pass saves for backward, the gradient of the rows is computed and saved
/// here, chunk by chunk while the logits are there, and the gradient of the weight is added, in the
/// type of gradient sums: no product is computed twice. The caller announces the gradients of the
/// head's bucket before and after. The head must be divided along its outputs.
Tensor chunked_token_losses(Pass& pass, Linear& head, const Tensor& rows, const ModelBatch& batch,
                            const TokenTargets& of, std::int64_t chunk);

}  // namespace choir
