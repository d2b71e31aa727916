#pragma once
// What is done with logits whose columns are divided among the ranks of the tensor axis.
#include "choir/models/batch.hpp"
#include "choir/nn/pass.hpp"

namespace choir {

/// What the losses of tokens depend on beside their logits.
struct TokenTargets {
  TensorView targets;           ///< [B*T] i32; there is no loss where they are below 0
  std::int64_t vocabulary = 0;  ///< columns behind it are padding
  double label_smoothing = 0;
  TensorView weights{};  ///< [B*T] f32 of the losses; empty: 1
};

/// Collective over the tensor axis: logits [B*T, V' / ranks] -> losses [B*T]. Training saves the
/// gradient of the logits, which takes their place.
Tensor token_losses(Pass& pass, const Tensor& logits, const ModelBatch& batch,
                    const TokenTargets& of);

/// Collective over the tensor axis: [B, n] of each rank -> [B, ranks * n] on all of them.
Tensor gather_columns(Pass& pass, const Tensor& part);

/// [N, V'] -> [N, V]: for who looks at rows of symbols on the host.
Tensor without_padding(Pass& pass, const Tensor& logits, std::int64_t symbols);

/// [B * T, width] -> [B, width]: the last position of every sequence.
Tensor last_positions(Pass& pass, const Tensor& rows);

}  // namespace choir
