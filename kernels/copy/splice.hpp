#pragma once
// Inserts rows of audio among the rows of a prompt, at the positions given by an index, where the
// token embedding has left rows without a token. No two rows name the same audio, so backward is a
// copy with the same index, without sums. Floor per element of named audio: forward 3 transfers,
// backward 2 plus writing zeros before.

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir::ops {

/// `index` [N] i32: -1 - a names row a of all audio; 0 or more is a token, and is ignored. Each row
/// of audio is named at most once. This rank holds M rows of audio from `first_audio` on; rows of
/// other ranks are skipped, so that the sum over ranks contains every row once.
struct SpliceForward {
  TensorView index;
  TensorView audio;              ///< [M, C]
  TensorView out;                ///< [N, C]; out[r] += audio[-1 - index[r] - first_audio]
  std::int64_t first_audio = 0;  ///< this rank's first row, counted over all audio
  std::int64_t all_audio = 0;    ///< rows of all ranks; 0: M
};

/// d_audio[-1 - index[r] - first_audio] = d_out[r] (a copy); zeros for rows that no index names.
struct SpliceBackward {
  TensorView index;
  TensorView d_out;    ///< [N, C]
  TensorView d_audio;  ///< [M, C]
  std::int64_t first_audio = 0;
  std::int64_t all_audio = 0;
};

/// Local. If the host can see the index, it refuses an index that is outside of all audio.
void splice_forward(const Stream& stream, const SpliceForward& args);
void splice_backward(const Stream& stream, const SpliceBackward& args);

}  // namespace choir::ops

namespace choir {

namespace cpu {
template <class T>
void splice_forward(const ops::SpliceForward& args);
/// d_audio must be zero.
template <class T>
void splice_backward(const ops::SpliceBackward& args);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void splice_forward(const Stream& stream, const ops::SpliceForward& args);
/// d_audio must be zero.
CHOIR_CUDA_KERNEL void splice_backward(const Stream& stream, const ops::SpliceBackward& args);
}  // namespace cuda

namespace ref {
/// f64.
void splice_forward(const ops::SpliceForward& args);
void splice_backward(const ops::SpliceBackward& args);
}  // namespace ref

}  // namespace choir
