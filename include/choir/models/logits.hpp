#pragma once
// Operations on logits whose columns are divided among the ranks of the tensor axis.

#include "choir/models/batch.hpp"
#include "choir/nn/pass.hpp"

namespace choir {

/// Inputs of the token losses besides the logits.
struct TokenTargets {
  TensorView targets;           ///< [B*T] i32; positions below 0 have no loss
  std::int64_t vocabulary = 0;  ///< columns from here on are padding
  double label_smoothing = 0;
  TensorView weights{};    ///< [B*T] f32, factors of the losses; empty: 1
  double z_loss = 0;       ///< z of ops::CrossEntropy
  std::size_t z_term = 1;  ///< the term of the loss that collects lse^2, if z_loss is above 0
  double logit_scale = 1, logit_softcap = 0;  ///< see ops::LogitMap
};

/// Collective over the tensor axis: logits [B*T, V' / ranks] -> losses [B*T]; with a z-loss [2,
/// B*T], the second row of which has lse^2. They are added to the first term of the loss and to the
/// term of the z-loss, with the number of their targets. In training the gradient of the logits
/// overwrites them and is saved.
Tensor token_losses(Pass& pass, const Tensor& logits, const ModelBatch& batch,
                    const TokenTargets& of);

/// Collective over the tensor axis: [B, n] of each rank -> [B, ranks * n] on all of them.
Tensor gather_columns(Pass& pass, const Tensor& part);

/// [N, V'] -> [N, V], for callers that read rows of symbols on the host.
Tensor without_padding(Pass& pass, const Tensor& logits, std::int64_t symbols);

/// [B * T, width] -> [B, width]: the last position of every sequence.
Tensor last_positions(Pass& pass, const Tensor& rows);

}  // namespace choir
