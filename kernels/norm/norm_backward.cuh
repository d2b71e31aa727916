#pragma once
// LayerNorm and RMSNorm backward on the GPU; formulas in kernels/norm/norm.hpp. Floor per element:
// d_out, x, d_sum read and d_sum written, 4 transfers (3 without accumulation): 65536 x 768 in 16
// bits, 403 MB, is 94 us on an H200 at 4.3 TB/s.
//
// In the usual kernel a warp waits for its row, sums it, writes, and only then requests the next
// one, while the sums over rows occupy the registers that more warps would need; this costs half of
// the bandwidth. Here a fixed number of blocks (norm_plan.hpp), as many as 132 multiprocessors hold
// at once, iterates over its rows. cp.async loads d_out and x of the next row into shared memory
// while the current one is computed, and d_sum is requested before the first use of either. With 16
// warps per multiprocessor, 48 KiB and up to 24 more are in flight, compared with the 25 KiB that
// cover the latency. A thread reads only the data that it copied itself, so the ring needs no
// barrier. Arithmetic is about 20 instructions per element, 40 % of issue slots at the floor. Costs
// beyond the floor: first row and last sums of every block (about 3 us), 6 KiB of partial sums per
// block written and read (cached), the second stage (3 us). 65536 x 768 take 152 us on an H100, 88
// % of copy bandwidth.
//
// d_weight and d_bias are summed over the rows of a warp in registers, over the warps of a block in
// order, and over blocks by column_sums.hpp. The result is deterministic and the same on every GPU.
#include "kernels/norm/norm_row.cuh"

namespace choir::cuda {

template <class T>
struct NormBackwardArguments {
  const T *d_out, *x;        ///< [rows, width]
  const T* weight;           ///< [width]
  const float *mean, *rstd;  ///< [rows]; mean is nullptr for rmsnorm
  T* d_sum;                  ///< [rows, width]
  bool accumulate;
  float* partials;  ///< per block: stride sums of d_weight, then stride sums of d_bias
  std::int64_t stride;
  std::int64_t rows, rows_per_block;
  int width;
};

/// Shared memory: a ring of two slots, each with kValues columns of d_out and of x per thread. At
/// the end it is reused for the two sums per column of every thread.
template <class Row>
constexpr std::size_t kNormBackwardShared = 4 * sizeof(typename Row::T) * Row::kValues* Row::kBlock;
static_assert(4 * sizeof(bf16) >= 2 * sizeof(float));

/// The elements that a thread loads for its own use.
template <class Row>
struct RowRing {
  using T = typename Row::T;
  T* slots;
  __device__ T* slot(int turn, int tensor, int step) const {
    const int index = (turn * 2 + tensor) * Row::kSteps + step;
    return slots + (index * Row::kBlock + static_cast<int>(threadIdx.x)) * Row::kWide;
  }
  /// Starts the copies of the pieces of a row.
  __device__ void fetch(int turn, const T* d_out, const T* x, int thread, int width) const {
#pragma unroll
    for (int s = 0; s < Row::kSteps; ++s) {
      const int c = Row::column(thread, s);
      if (c >= width) continue;
      if constexpr (Row::kPacked) {
        ptx::cp_async_16(slot(turn, 0, s), d_out + c);
        ptx::cp_async_16(slot(turn, 1, s), x + c);
      } else {
        *slot(turn, 0, s) = d_out[c];
        *slot(turn, 1, s) = x[c];
      }
    }
    ptx::cp_async_commit();
  }
};

/// Registers that a thread needs: two sums per column, the old d_sum, and others. Configurations
/// that do not fit 16 warps per multiprocessor get more registers instead.
template <class Row>
constexpr int kNormBackwardRegisters =
    2 * Row::kValues + Row::kSteps* static_cast<int>((sizeof(typename Row::Wide::Raw) + 3) / 4) +
    (Row::kValues > 8 && Row::kWide < 8 ? 80 : 48);
/// Target number of blocks per multiprocessor; registers are allocated in units of eight.
template <class Row>
constexpr int kNormBackwardFit = 65536 / ((kNormBackwardRegisters<Row> + 7) / 8 * 8 * Row::kBlock);
template <class Row>
constexpr int kNormBackwardResident = kNormBackwardFit<Row> < 1 ? 1 : kNormBackwardFit<Row>;

/// `to` is aligned to kWide floats.
template <int kWide>
__device__ inline void store_floats(float* to, const float* x) {
  using Piece = Access<float, kWide % 4 == 0>;
#pragma unroll
  for (int i = 0; i < kWide; i += Piece::kWide) Piece::store(to + i, x + i);
}

/// Adds the sums of the warps of a block in order, and writes them as the block's partial sums.
template <class Row>
__device__ inline void write_partials(float (&sums)[2][Row::kSteps][Row::kWide], float* partials,
                                      std::int64_t stride, int width) {
  constexpr int kWide = Row::kWide, kThreads = Row::kThreads;
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  const int group = static_cast<int>(threadIdx.x) / kThreads;
  if constexpr (Row::kGroups == 1) {
#pragma unroll
    for (int y = 0; y < 2; ++y)
#pragma unroll
      for (int s = 0; s < Row::kSteps; ++s) {
        const int c = Row::column(thread, s);
        if (c < width) store_floats<kWide>(partials + y * stride + c, sums[y][s]);
      }
  } else {
    auto* shared = dynamic_shared<float>();  // [2][kSteps][kWide][kBlock]
    __syncthreads();                         // the rings have been read
#pragma unroll
    for (int y = 0; y < 2; ++y)
#pragma unroll
      for (int s = 0; s < Row::kSteps; ++s)
#pragma unroll
        for (int i = 0; i < kWide; ++i)
          shared[((y * Row::kSteps + s) * kWide + i) * Row::kBlock +
                 static_cast<int>(threadIdx.x)] = sums[y][s][i];
    __syncthreads();
    for (int piece = group; piece < 2 * Row::kSteps; piece += Row::kGroups) {
      const int y = piece / Row::kSteps, c = Row::column(thread, piece % Row::kSteps);
      if (c >= width) continue;
      float total[kWide];
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        const float* from = shared + (piece * kWide + i) * Row::kBlock + thread;
        total[i] = from[0];
#pragma unroll
        for (int g = 1; g < Row::kGroups; ++g) total[i] += from[g * kThreads];
      }
      store_floats<kWide>(partials + y * stride + c, total);
    }
  }
}

template <class Row>
__global__ void __launch_bounds__(Row::kBlock, kNormBackwardResident<Row>)
    norm_backward_kernel(NormBackwardArguments<typename Row::T> a) {
  using T = typename Row::T;
  using Wide = typename Row::Wide;
  constexpr int kThreads = Row::kThreads, kWide = Row::kWide, kSteps = Row::kSteps;
  CHOIR_SHARED_ARRAY(float, scratch, (2 * kRowScratch<kThreads, 2>));
  const RowRing<Row> ring{dynamic_shared<T>()};
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  const std::int64_t block_first = blockIdx.x * a.rows_per_block;
  const std::int64_t last = min(block_first + a.rows_per_block, a.rows);
  const std::int64_t first = block_first + threadIdx.x / kThreads;
  const float over_width = 1.0f / static_cast<float>(a.width);

  float sums[2][kSteps][kWide] = {};  // of d_weight and d_bias
  if (first < last)
    ring.fetch(0, a.d_out + first * a.width, a.x + first * a.width, thread, a.width);
  int turn = 0;
  for (std::int64_t row = first; row < last; row += Row::kGroups, turn ^= 1) {
    const std::int64_t at = row * a.width, next = at + Row::kGroups * std::int64_t{a.width};
    if (row + Row::kGroups < last)
      ring.fetch(turn ^ 1, a.d_out + next, a.x + next, thread, a.width);
    else
      ptx::cp_async_commit();  // an empty group keeps the meaning of the wait below
    typename Wide::Raw before[kSteps] = {};
    if (a.accumulate) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
        if (Row::column(thread, s) < a.width)
          before[s] = Wide::read(a.d_sum + at + Row::column(thread, s));
    }
    const float mean = a.mean != nullptr ? a.mean[row] : 0.0f, rstd = a.rstd[row];
    ptx::cp_async_wait<1>();

    float total[2] = {0, 0};  // of g and of g (x - mean), with g = w d_out
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int c = Row::column(thread, s);
      if (c >= a.width) continue;
      float d[kWide], x[kWide], w[kWide];
      Wide::load(ring.slot(turn, 0, s), d), Wide::load(ring.slot(turn, 1, s), x);
      Wide::load(a.weight + c, w);
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        const float g = d[i] * w[i];
        total[0] += g;
        total[1] += g * (x[i] - mean);
      }
    }
    row_sums<kThreads>(total, scratch + turn * kRowScratch<kThreads, 2>);
    // d_x = rstd g - rstd mean(g) - (x - mean) rstd^3 mean(g (x - mean))
    const float shift = a.mean != nullptr ? -rstd * total[0] * over_width : 0.0f;
    const float slope = -rstd * total[1] * over_width * rstd * rstd;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int c = Row::column(thread, s);
      if (c >= a.width) continue;
      float d[kWide], x[kWide], w[kWide], d_x[kWide];
      Wide::load(ring.slot(turn, 0, s), d), Wide::load(ring.slot(turn, 1, s), x);
      Wide::load(a.weight + c, w);
      Wide::unpack(before[s], d_x);  // 0 if d_sum is overwritten
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        const float centred = x[i] - mean, scaled = d[i] * rstd;
        sums[0][s][i] += scaled * centred;
        sums[1][s][i] += d[i];
        d_x[i] += scaled * w[i] + (centred * slope + shift);
      }
      Wide::store(a.d_sum + at + c, d_x);
    }
  }
  write_partials<Row>(sums, a.partials + blockIdx.x * 2 * a.stride, a.stride, a.width);
}

/// Rows that do not fit into registers are read element by element, twice. The sums over rows are
/// in the workspace, where each thread returns to its own columns.
template <class T>
__global__ void CHOIR_ALONE_ON_BLACKWELL(kLongRowThreads)
    norm_backward_long_kernel(NormBackwardArguments<T> a) {
  constexpr int kThreads = kLongRowThreads;
  CHOIR_SHARED_ARRAY(float, scratch, (2 * kRowScratch<kThreads, 2>));
  const int thread = static_cast<int>(threadIdx.x);
  float* const d_weight = a.partials + blockIdx.x * 2 * a.stride;
  float* const d_bias = d_weight + a.stride;
  for (int c = thread; c < a.width; c += kThreads) d_weight[c] = 0, d_bias[c] = 0;
  const std::int64_t first = blockIdx.x * a.rows_per_block;
  const std::int64_t last = min(first + a.rows_per_block, a.rows);
  const float over_width = 1.0f / static_cast<float>(a.width);
  for (std::int64_t row = first; row < last; ++row) {
    const T *d_out = a.d_out + row * a.width, *x = a.x + row * a.width;
    T* d_sum = a.d_sum + row * a.width;
    const float mean = a.mean != nullptr ? a.mean[row] : 0.0f, rstd = a.rstd[row];
    float total[2] = {0, 0};
    for (int c = thread; c < a.width; c += kThreads) {
      const float g = to_float(d_out[c]) * to_float(a.weight[c]);
      total[0] += g;
      total[1] += g * (to_float(x[c]) - mean);
    }
    row_sums<kThreads>(total, scratch + (row - first) % 2 * kRowScratch<kThreads, 2>);
    const float shift = a.mean != nullptr ? -rstd * total[0] * over_width : 0.0f;
    const float slope = -rstd * total[1] * over_width * rstd * rstd;
    for (int c = thread; c < a.width; c += kThreads) {
      const float d = to_float(d_out[c]), centred = to_float(x[c]) - mean, scaled = d * rstd;
      d_weight[c] += scaled * centred;
      d_bias[c] += d;
      const float before = a.accumulate ? to_float(d_sum[c]) : 0.0f;
      d_sum[c] = from_float<T>(before + scaled * to_float(a.weight[c]) + (centred * slope + shift));
    }
  }
}

}  // namespace choir::cuda
