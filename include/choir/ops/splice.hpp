#pragma once
// Rows of audio put in among the rows of a prompt: where an index says which, at positions that an
// embedding of tokens has left without one.
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

/// `index` [N] i32: -1 - a names row a of all audio; 0 or more is a token, and not looked at. Each
/// row of audio is named at most once. This rank holds M rows of audio from `first_audio` on;
/// those of others are for others, so that the sum over ranks has every row once.
struct SpliceForward {
  TensorView index;
  TensorView audio;              ///< [M, C]
  TensorView out;                ///< [N, C]; out[r] += audio[-1 - index[r] - first_audio]
  std::int64_t first_audio = 0;  ///< in all audio
  std::int64_t all_audio = 0;    ///< rows of all ranks; 0: M
};

/// d_audio[-1 - index[r] - first_audio] = d_out[r], a copy; zeros where no row names it.
struct SpliceBackward {
  TensorView index;
  TensorView d_out;    ///< [N, C]
  TensorView d_audio;  ///< [M, C]
  std::int64_t first_audio = 0;
  std::int64_t all_audio = 0;
};

/// Local. Where the host can see the index it refuses one that names no row of all audio.
void splice_forward(const Stream& stream, const SpliceForward& args);
void splice_backward(const Stream& stream, const SpliceBackward& args);

}  // namespace choir::ops
