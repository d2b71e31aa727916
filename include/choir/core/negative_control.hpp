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
  tied_unjoined,     ///< the places of use of a tied weight keep their own parts of the gradient
  tied_twice,        ///< the clipping norm counts both copies of a tied weight
  local_norm,        ///< gradients are clipped by the norm of what this stage or tensor rank has
  slice_norm,        ///< ... of the slices of this data-parallel rank
  slice_by_padding,  ///< ZeRO: slices begin too early by the padding of their bucket
  slice_by_one,      ///< ... by one step of their alignment
  stale_gather,      ///< ... ranks keep the values that others had before the update
  groups_unsummed,   ///< ... gradients are summed inside groups only
  micro_batch_lost,  ///< the second micro-batch overwrites the gradients of the first
  micro_batch_twice,  ///< a pipeline takes the first micro-batch again in place of the second
  layer_dropped,      ///< the last layer of the first stage is on no stage
  stage_loss_kept,    ///< the last stage does not tell the others its loss
  positions_local,    ///< every rank of the context axis counts positions from 0
  context_unsummed,   ///< gradients and losses are not summed over the context axis
  copies_unsummed,    ///< heads of keys and values copied for several ranks get the gradient of one
  mask_redrawn,       ///< what backward computes again has another dropout mask than it had
  inner_norm_unsummed,  ///< a norm over divided channels: backward takes its own channels for all
  ids_by_position,  ///< random numbers of an utterance follow from its place on the rank, not its
                    ///< id
  empty_counted,    ///< micro-batches of padding count as a target each
  mask_left_out,    ///< the second stage of the subsampling reads the padding of the first
  statistics_unreduced,  ///< running statistics follow the micro-batches of a rank alone
  throws_alone,          ///< no rule: the last rank of a layout throws, the others wait for it
  throws_everywhere,     ///< ... all its ranks throw
};

/// "norm-unreduced" ..., without `none`.
const std::vector<std::string>& negative_control_names();
/// Throws DeckError with the names for any other.
NegativeControl negative_control_of(const std::string& name);

}  // namespace choir
