#pragma once
// Quantised matrices: their blocks, the encoder (on the host) and the decoder. The elements of a
// matrix, row by row, form blocks of 64 that share a scale.
//
//   bits  code of an element             its value                 scale of a block
//   4     index into kNormalFloats, two  table[code] * scale       8 bits, see below
//         a byte, the first in the high
//         half (NF4, Dettmers et al. 2023)
//   8     signed integer                 code * scale              f32: the largest magnitude / 127
//
// A scale in 8 bits (double quantisation) is offset + map[byte] * deviation: the offset is the mean
// of the largest magnitudes of all blocks of the matrix, and 256 consecutive blocks, a group, share
// the largest deviation from it. The codes, the map and the rule are those of bitsandbytes;
// matrices that are joined here (query, key and value) have one mean.
//
// Values are products in f32, rounded once to the type of the output, and thus equal on all
// devices. A part of a matrix keeps the codes and scales that its blocks have in the whole matrix.

#include <array>
#include <cstdint>
#include <vector>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

inline constexpr std::int64_t kPackedBlock = 64;
inline constexpr std::int64_t kScaleGroup = 256;

/// The quantiles of a normal distribution, scaled to [-1, 1], that NF4 rounds to.
inline constexpr std::array<float, 16> kNormalFloats{-1.0F,
                                                     -0.6961928009986877F,
                                                     -0.5250730514526367F,
                                                     -0.39491748809814453F,
                                                     -0.28444138169288635F,
                                                     -0.18477343022823334F,
                                                     -0.09105003625154495F,
                                                     0.0F,
                                                     0.07958029955625534F,
                                                     0.16093020141124725F,
                                                     0.24611230194568634F,
                                                     0.33791524171829224F,
                                                     0.44070982933044434F,
                                                     0.5626170039176941F,
                                                     0.7229568362236023F,
                                                     1.0F};

/// The 256 values of a scale's byte, ascending: seven decades with 1, 2, 4 ... 64 values of each
/// sign, 0, and 1.
std::array<float, 256> scale_map();

/// Sizes in bytes for `elements` elements of whole blocks.
constexpr std::int64_t code_bytes(int bits, std::int64_t elements) {
  return elements * bits / 8;
}
constexpr std::int64_t scale_bytes(int bits, std::int64_t elements) {
  return elements / kPackedBlock * (bits == 4 ? 1 : static_cast<std::int64_t>(sizeof(float)));
}
/// f32 numbers that a matrix has beside its blocks: the offset and the deviation of each group.
constexpr std::int64_t group_floats(int bits, std::int64_t elements) {
  const std::int64_t group = kPackedBlock * kScaleGroup;
  return bits == 4 ? 1 + (elements + group - 1) / group : 0;
}

/// The scales of the blocks of a whole matrix.
struct BlockScales {
  std::vector<float> largest;    ///< largest magnitude of each block
  std::vector<std::byte> bytes;  ///< scale_bytes()
  std::vector<float> groups;     ///< group_floats()
};
/// Host memory. `elements` are whole blocks. Scales of elements that are not finite are not either.
BlockScales block_scales(int bits, const float* matrix, std::int64_t elements);
/// Host memory. Encodes `blocks` blocks that have these largest magnitudes.
void pack_blocks(int bits, const float* from, const float* largest, std::int64_t blocks,
                 std::byte* to);

}  // namespace choir

namespace choir::ops {

/// Decodes consecutive local blocks of a matrix. Local block i is block
/// origin + (first + i) / width * stride + (first + i) % width of the whole matrix, which has its
/// group: `width` is the number of consecutive blocks that a rank has of each row.
struct Unpack {
  int bits = 4;
  TensorView codes;   ///< u8 [code_bytes(n)]
  TensorView scales;  ///< u8 [n / 64], or f32 [n / 64] for 8 bits
  TensorView groups;  ///< f32 [group_floats() of the whole matrix]; empty for 8 bits
  TensorView tables;  ///< f32 [kPackingTables] with the two tables; empty for 8 bits
  std::int64_t first = 0, width = 1, stride = 1, origin = 0;
  TensorView out;  ///< [n]
};
inline constexpr std::int64_t kPackingTables = 16 + 256;

void unpack(const Stream& stream, const Unpack& args);

}  // namespace choir::ops

namespace choir {

namespace cpu {
// Floor per element: bits / 8 bytes read and one element written. A block of 4 bits has a table of
// its 16 values in the type of the output, so that each element is a look-up.
template <class T>
void unpack(const ops::Unpack& args);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void unpack(const Stream& stream, const ops::Unpack& args);
}  // namespace cuda

namespace ref {
/// f64, from the formulas above.
void unpack(const ops::Unpack& args);
}  // namespace ref

}  // namespace choir
