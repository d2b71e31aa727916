#pragma once
// Rules of parallel training that can be broken on purpose, one at a time, to see that whoever
// checks them notices: each is a mistake that trainers have shipped. Passed in options, never set
// globally; off everywhere but in `choir verify --break NAME` and in tests.
#include <string>
#include <vector>

namespace choir {

enum class NegativeControl {
  none,
  norm_unreduced,    ///< sequence parallelism: gradients of norms stay parts of sums
  kv_unsummed,       ///< heads of keys and values held by several ranks: likewise
  replicated_twice,  ///< the clipping norm counts what every tensor rank holds once for each
  mean_of_means,     ///< losses are divided by the tokens of a rank, then by the ranks
  padding_leaks,     ///< logits of the padding behind the vocabulary take part in the softmax
  local_smoothing,   ///< what smoothing takes from a target is spread over the symbols of one rank
  bias_everywhere,   ///< the bias of a row layer is added by every rank before the sum
  dropout_per_rank,  ///< every rank draws random numbers from a stream of its own
  loss_unreduced,    ///< a rank reports the loss of its own part of the batch
  batch_off,         ///< ranks forget their gradient accumulation when they take turns in the batch
};

/// "norm-unreduced" ..., without `none`.
const std::vector<std::string>& negative_control_names();
/// Throws DeckError with the names for any other.
NegativeControl negative_control_of(const std::string& name);

}  // namespace choir
