#include "src/models/salm/frame_stack.hpp"

#include "choir/nn/axes/tensor_axis.hpp"
#include "choir/ops/copy_blocks.hpp"
#include "choir/ops/glu.hpp"
#include "choir/ops/reduce.hpp"

namespace choir {
namespace {

/// Copies the frames of each clip between buffers in which clips have different lengths.
void copy_clips(Pass& pass, std::int64_t clips, std::int64_t width, const TensorView& from,
                const TensorView& to) {
  const std::int64_t from_stride = from.count() / clips, to_stride = to.count() / clips;
  ops::copy_blocks(pass.stream(), {.dtype = from.dtype,
                                   .rows = clips,
                                   .blocks = 1,
                                   .width = width,
                                   .from = {.data = from.data, .row_stride = from_stride},
                                   .to = {.data = to.data, .row_stride = to_stride}});
}

Tensor whole(Pass& pass, const Tensor& share, int sequence) {
  const Pass::On on(pass, sequence);
  return gather_rows(pass, share);
}

Tensor own(Pass& pass, const Tensor& rows, int sequence) {
  const Pass::On on(pass, sequence);
  return own_rows(pass, rows);
}

}  // namespace

Sequence FrameStack::rows_of(const Sequence& frames) const {
  Sequence rows = frames;
  rows.tokens = (frames.tokens + frames_ - 1) / frames_;
  if (frames_ > 1) rows.lengths = nullptr;
  return rows;
}

// Shares of the frames and of the rows begin at different frames, so all frames are gathered
// between them. The contents of padded frames must not matter, so they become zero.
Tensor FrameStack::forward(Pass& pass, const Tensor& share, int frames, int rows) const {
  if (frames_ == 1) return share;
  const Sequence &from = pass.sequence(frames), &to = pass.sequence(rows);
  const Tensor all = whole(pass, share, frames);
  const std::int64_t width = all.shape.back();
  const Tensor stacked = pass.allocate({to.rows(), frames_ * width}, "stacked frames");
  ops::zero(pass.stream(), stacked);
  copy_clips(pass, from.batch, from.tokens * width, all, stacked);
  ops::mask_frames(pass.stream(), stacked.reshaped({to.rows() * frames_, width}), from.lengths,
                   to.tokens * frames_);
  return own(pass, stacked, rows);
}

Tensor FrameStack::backward(Pass& pass, const Tensor& d_share, int frames, int rows) const {
  if (frames_ == 1) return d_share;
  const Sequence& to = pass.sequence(frames);
  const Tensor d_stacked = whole(pass, d_share, rows);
  const std::int64_t width = d_stacked.shape.back() / frames_;
  const Tensor d_all = pass.allocate({to.rows(), width}, "gradient of frames");
  copy_clips(pass, to.batch, to.tokens * width, d_stacked, d_all);
  ops::mask_frames(pass.stream(), d_all, to.lengths, to.tokens);
  return own(pass, d_all, frames);
}

}  // namespace choir
