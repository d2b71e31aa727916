#include "choir/models/salm/frame_projector.hpp"

#include <algorithm>
#include <cmath>

#include "choir/models/blocks.hpp"
#include "choir/ops/dropout.hpp"
#include "choir/ops/reduce.hpp"
#include "choir/ops/splice.hpp"

namespace choir {

FrameProjector::Places::Places(const Pass& pass)
    : clips(pass.mode() == Mode::generate ? 1 : pass.context().size()),
      alone(pass.sequence().alone ? pass.whole_tensor().size() : 1),
      of_clips(pass.sequence().rows()),
      share(pass.share_rows()),
      begin(pass.first_share_row()),
      rows(std::clamp<std::int64_t>(of_clips - begin, 0, share)),
      own(alone > 1 ? pass.whole_tensor().rank() : 0),
      // If every tensor rank has all frames, only one of them adds them to the sum over ranks.
      adds(pass.shares_rows() || alone > 1 || pass.tensor().rank() == 0) {}

std::int64_t FrameProjector::Places::first(std::int64_t rank) const {
  return (rank * alone + own) * of_clips + begin;
}

FrameProjector::FrameProjector(ParameterSet& parameters, std::int64_t inputs, std::int64_t outputs,
                               bool resident, double factor)
    : factor_(factor) {
  parameters.begin_bucket("projector", resident);
  ShardSpec shard;
  if (parameters.tensor().sequence) shard.partial = {Axis::tensor};
  layer_ = std::make_unique<Linear>(
      parameters, "projector", inputs, outputs,
      Linear::Options{.init_std = 1 / std::sqrt(3.0 * static_cast<double>(inputs)),
                      .weight_shard = shard,
                      .bias_shard = shard});
}

void FrameProjector::multiply(Pass& pass, const Tensor& rows) const {
  if (factor_ != 1)
    ops::dropout(pass.stream(),
                 {.in = rows, .out = rows, .factor = factor_, .tokens = rows.shape.rows()});
}

FrameProjector::Projected FrameProjector::forward(Pass& pass, const Tensor& frames,
                                                  BucketHooks& hooks) {
  const Tensor rows =
      forward_with(hooks, layer_->bucket(), [&] { return layer_->forward(pass, frames); });
  multiply(pass, rows);
  const Places places(pass);
  if (places.clips == 1) return {rows, places};
  const Tensor all =
      pass.allocate({places.clips * places.share, rows.shape.back()}, "frames of all clips");
  Communicator& ranks = *pass.context().communicator;
  ops::copy(pass.stream(), rows, all.slice(ranks.rank() * places.share, places.share));
  ranks.all_gather(all.data, static_cast<std::size_t>(rows.count()), all.dtype);
  return {all, places};
}

void FrameProjector::Projected::add(Pass& pass, const TensorView& index,
                                    const Tensor& terms) const {
  const std::int64_t rows = places.rows;
  if (!places.adds || rows == 0) return;
  for (std::int64_t rank = 0; rank < places.clips; ++rank)
    ops::splice_forward(pass.stream(), {.index = index,
                                        .audio = frames.slice(rank * places.share, rows),
                                        .out = terms,
                                        .first_audio = places.first(rank),
                                        .all_audio = places.all()});
}

Tensor FrameProjector::backward(Pass& pass, const TensorView& index, const Tensor& d_rows,
                                BucketHooks& hooks) {
  const Tensor d_projected = frames_of(pass, index, d_rows);
  multiply(pass, d_projected);
  return backward_with(pass, hooks, layer_->bucket(),
                       [&] { return layer_->backward(pass, d_projected); });
}

// Every row of the index is on one rank of the context axis: the sums have one term each.
Tensor FrameProjector::frames_of(Pass& pass, const TensorView& index, const Tensor& d_rows) const {
  const Places places(pass);
  const Tensor all =
      pass.allocate({places.clips * places.share, d_rows.shape.back()}, "gradient of frames");
  for (std::int64_t rank = 0; rank < places.clips; ++rank) {
    const TensorView part = all.slice(rank * places.share, places.share);
    if (places.rows > 0)
      ops::splice_backward(pass.stream(), {.index = index,
                                           .d_out = d_rows,
                                           .d_audio = part.slice(0, places.rows),
                                           .first_audio = places.first(rank),
                                           .all_audio = places.all()});
    if (places.rows < places.share)
      ops::zero(pass.stream(), part.slice(places.rows, places.share - places.rows));
  }
  if (places.clips == 1) return all;
  Communicator& ranks = *pass.context().communicator;
  const Tensor mine = pass.allocate({places.share, d_rows.shape.back()}, "gradient of frames");
  ranks.reduce_scatter(all.data, static_cast<std::size_t>(mine.count()), all.dtype, ReduceOp::sum,
                       pass.tensor().order);
  ops::copy(pass.stream(), all.slice(ranks.rank() * places.share, places.share), mine);
  return mine;
}

}  // namespace choir
