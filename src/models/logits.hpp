#pragma once
// What is done with logits whose columns are divided among the ranks of the tensor axis.
#include "choir/nn/pass.hpp"
#include "choir/ops/cross_entropy.hpp"

namespace choir {

/// Collective over the tensor axis: the losses of `call`, and the gradient in place of the logits.
/// `first_column`: of this rank.
void token_losses(Pass& pass, const ops::CrossEntropy& call, std::int64_t first_column);

/// Collective over the tensor axis: [B, n] of each rank -> [B, ranks * n] on all of them.
Tensor gather_columns(Pass& pass, const Tensor& part);

/// [N, V'] -> [N, V]: for who looks at rows of symbols on the host.
Tensor without_padding(Pass& pass, const Tensor& logits, std::int64_t symbols);

/// [B * T, width] -> [B, width]: the last position of every sequence.
Tensor last_positions(Pass& pass, const Tensor& rows);

}  // namespace choir
