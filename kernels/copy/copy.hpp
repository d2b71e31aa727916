#pragma once
// Copies of rows and of blocks of rows. copy_rows() copies rows between two strided memory areas,
// for example new keys and values into a cache; on the CPU it is one memcpy per row. copy_blocks()
// copies rows that are cut into equal blocks (heads, parts for several ranks) between two layouts;
// blocks may be replicated or summed. Floor: 1 read per term, 1 write.

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/copy_rows.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir::ops {

/// A layout of blocks. Element e of block k in row r is at data + r*row_stride +
/// k/group*group_stride + k%group*stride + e (in elements).
struct BlockPlace {
  void* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t stride = 0;
  std::int64_t group = 1;
  std::int64_t group_stride = 0;
};

/// to(r, k, :) = from(r, k*terms, :) + ... + from(r, k*terms + terms - 1, :), added in this order
/// in f32 (f64 for f64). With one term the bits are copied, for any dtype. `to` does not overlap.
struct CopyBlocks {
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t blocks = 0;  ///< blocks of `to`
  std::int64_t width = 0;   ///< elements per block
  std::int64_t terms = 1;
  BlockPlace from, to;
};

void copy_blocks(const Stream& stream, const CopyBlocks& args);

}  // namespace choir::ops

namespace choir::cuda {

/// Elements of `unit` bytes.
CHOIR_CUDA_KERNEL void copy_rows(const Stream& stream, std::int64_t unit, std::int64_t rows,
                                 std::int64_t width, const ops::RowBlock& from,
                                 const ops::RowBlock& to, const std::int32_t* further);

}  // namespace choir::cuda

namespace choir {

namespace cpu {
/// One term; elements of any size `unit` in bytes.
void copy_blocks(const ops::CopyBlocks& args, std::int64_t unit);
template <class T>
void sum_blocks(const ops::CopyBlocks& args);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void copy_blocks(const Stream& stream, const ops::CopyBlocks& args);
}  // namespace cuda

namespace ref {
/// f64.
void copy_blocks(const ops::CopyBlocks& args);
}  // namespace ref

}  // namespace choir

namespace choir::ops {

// Inserts rows of audio among the rows of a prompt, at the positions given by an index, where the
// token embedding has left rows without a token. No two rows name the same audio, so backward is a
// copy with the same index, without sums. Floor per element of named audio: forward 3 transfers,
// backward 2 plus writing zeros before.

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
