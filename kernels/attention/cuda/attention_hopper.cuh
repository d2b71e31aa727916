#pragma once
// Shared by the attention kernels of sm_90a: the calls that they support, tiles that the copy
// engine fills and warp groups multiply, and the roles of a block's threads.
#include "kernels/attention/cuda/attention_args.cuh"
#include "kernels/attention/cuda/attention_tiles.cuh"
#include "kernels/cuda/hopper.cuh"
#include "src/device/cuda.hpp"

namespace choir::cuda {

// These functions are defined and instantiated beside the kernels.
template <class T>
bool hopper_has_attention(const ops::AttentionProblem& p);
template <class T>
void launch_attention_hopper_forward(const Stream& stream, const ops::AttentionProblem& p,
                                     const AttentionArgs<T>& a);
template <class T>
void launch_attention_hopper_backward(const Stream& stream, const ops::AttentionProblem& p,
                                      const AttentionArgs<T>& a);

/// True if the kernels of sm_90a compute a call, forward or backward; the mma.sync kernels compute
/// the others. Supported: heads of 64 and 128, causal or not, windows and documents, grouped
/// queries. Not supported: a bias (its loads would need the registers that hold scores), samples of
/// different lengths (elements beyond a length may be NaN, and the engine would load them), rows
/// that are not whole chunks of 16 bytes, and operands whose strides are not multiples of each
/// other, as a tensor map requires.
template <class T>
bool hopper_takes(const Stream& stream, const ops::AttentionProblem& p, const AttentionArgs<T>& a) {
  if constexpr (sizeof(T) != 2) {
    return false;
  } else {
    const auto nested = [&](const auto& x) {
      return x.position_stride > 0 && x.position_stride % p.head_width == 0 &&
             (p.batch == 1 || (x.batch_stride > 0 && x.batch_stride % x.position_stride == 0));
    };
    const Card* card = card_of(stream.device());
    return card && card->major == 9 && (p.head_width == 64 || p.head_width == 128) && a.aligned &&
           !a.bias && !a.lengths && a.cap == 0 && nested(a.q) && nested(a.k) && nested(a.v) &&
           (!a.d_out.data || nested(a.d_out)) && hopper_has_attention<T>(p);
  }
}

/// One group of warps issues the copies with few registers, two multiply with many: together they
/// use all registers of a multiprocessor (65,536 for 384 threads are 168 each at the start).
constexpr int kHopperConsumers = 2, kHopperThreads = (1 + kHopperConsumers) * ptx::kWarpGroup;
constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
static_assert(kProducerRegisters + kHopperConsumers * kConsumerRegisters <= 3 * 168);
/// Arrivals that free a tile: one of every multiplying warp.
constexpr unsigned kHopperReaders = kHopperConsumers * ptx::kWarpGroup / kWarp;

/// A tile of kRows x kWidth elements in slabs of 64 columns, the layout of ptx::load_box.
template <class T, int kRows_, int kWidth_>
struct BoxTile {
  static constexpr int kRows = kRows_, kWidth = kWidth_, kSlabs = kWidth / 64;
  static constexpr int kElements = kRows * kWidth;
  static constexpr unsigned kBytes = sizeof(T) * kElements, kSlabBytes = kBytes / kSlabs;
  static_assert(sizeof(T) == 2 && kWidth % 64 == 0 && kRows % 8 == 0 && kRows <= 256);

  T* data;

  /// Called by one thread: loads the rows of a head from `row` on.
  __device__ void load(const CUtensorMap& map, int head, int row, int sample,
                       ptx::Barrier* barrier) const {
#pragma unroll
    for (int s = 0; s < kSlabs; ++s)
      ptx::load_box(data + s * (kElements / kSlabs), &map, 64 * s, head, row, sample, barrier);
  }
  /// Columns from 16 k on of all rows, to be summed over.
  __device__ std::uint64_t columns(int k) const {
    return ptx::matrix_descriptor(data + k / 4 * (kElements / kSlabs) + k % 4 * 16, 0);
  }
  /// Rows from 16 k on, to be summed over, with all columns.
  __device__ std::uint64_t rows(int k) const {
    return ptx::matrix_descriptor(data + k * 16 * 64, kSlabBytes);
  }
};

/// Starts sums [64 x kRowsB] = A B^T.
template <class T, int kN, int kRowsA, int kRowsB, int kWidth>
__device__ inline void start_rows_product(float (&sums)[kN][4], const BoxTile<T, kRowsA, kWidth>& a,
                                          const BoxTile<T, kRowsB, kWidth>& b) {
  static_assert(8 * kN == kRowsB && kRowsA == 64);
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k)
    ptx::wgmma<T, false>(sums, a.columns(k), b.columns(k), k > 0);
}

/// Starts sums [64 x kWidth] += A B with A [64 x kRows] in registers.
template <class T, int kK, int kN, int kRows, int kWidth>
__device__ inline void start_product(float (&sums)[kN][4], const std::uint32_t (&a)[kK][4],
                                     const BoxTile<T, kRows, kWidth>& b) {
  static_assert(8 * kN == kWidth && 16 * kK == kRows);
#pragma unroll
  for (int k = 0; k < kK; ++k) ptx::wgmma<T, true>(sums, a[k], b.rows(k));
}

/// Position in a ring of kStages tiles: the next tile, and the parity of its phase.
template <int kStages>
struct Ring {
  int stage = 0;
  unsigned parity = 0;
  __device__ void advance() {
    if (++stage < kStages) return;
    stage = 0, parity ^= 1;
  }
};

template <class T>
void set_boxes(CUtensorMap& map, const AttentionRows<const T>& x, const ops::AttentionProblem& p,
               std::int64_t heads, std::int64_t positions, int box_rows) {
  set_tensor_map(map, {x.data, DTypeOf<T>::value, p.batch, positions, heads, p.head_width,
                       x.batch_stride, x.position_stride, box_rows});
}

}  // namespace choir::cuda
