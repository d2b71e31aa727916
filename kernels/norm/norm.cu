// LayerNorm and RMSNorm on the GPU, forward and backward. The helpers of both directions are in
// norm_rows.cuh.

#include "kernels/norm/norm.hpp"

#include "kernels/cuda/early_launch.cuh"
#include "kernels/dropout/dropout.cuh"
#include "kernels/norm/norm_rows.cuh"
#include "kernels/sums/sums.hpp"

namespace choir::cuda {

// LayerNorm and RMSNorm forward on the GPU; formulas in kernels/norm/norm.hpp. Floor: 2 element
// transfers (4 with the residual addition) and 8 bytes of statistics per row: 65536 x 768 in 16
// bits with the addition, 403 MB, is 94 us on an H200 at 4.3 TB/s. A row stays in registers between
// the two passes of the exact variance. Rows of up to 1024 columns have one warp, wider rows (or
// few rows) a block. A thread reads all its pieces before it uses the first, so that at least 48
// bytes per thread are in flight.

template <class T>
struct NormForwardArguments {
  const T *residual, *delta;  ///< [rows, width]; delta may be nullptr
  const T *weight, *bias;     ///< [width]; bias may be nullptr
  T *sum, *out;               ///< [rows, width]; sum only with delta
  float *mean, *rstd;         ///< [rows]; mean is nullptr for rmsnorm
  std::int64_t rows;
  int width;
  float eps, offset;  ///< offset: added to the weight
};

/// The arguments of a pass and, with kDropped, those of the dropout.
template <class Arguments, class T, bool kDropped>
struct WithDropout : Arguments {};
template <class Arguments, class T>
struct WithDropout<Arguments, T, true> : Arguments {
  DropoutArguments<T> dropout;
};
template <class Row>
using NormForwardPass =
    WithDropout<NormForwardArguments<typename Row::T>, typename Row::T, Row::kDropped>;

template <class Row>
__global__ void CHOIR_ALONE_ON_BLACKWELL(Row::kBlock) norm_forward_kernel(NormForwardPass<Row> a) {
  using Wide = typename Row::Wide;
  constexpr int kThreads = Row::kThreads, kWide = Row::kWide, kSteps = Row::kSteps;
  if constexpr (!Row::kAlone) follow_earlier();
  CHOIR_SHARED_ARRAY(float, scratch, (2 * kRowScratch<kThreads, 1>));
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  const std::int64_t row = std::int64_t{blockIdx.x} * Row::kGroups + threadIdx.x / kThreads;
  if (row >= a.rows)
    return;  // applies to a whole warp; no block has both barriers and missing
             // rows
  const std::int64_t at = row * a.width;

  typename Wide::Raw raw[kSteps] = {}, added[kSteps] = {}, weight[kSteps] = {};
  if constexpr (Row::kAlone) {
    let_next_begin();
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int c = Row::column(thread, s);
      if (c < a.width) weight[s] = Wide::read(a.weight + c);
    }
    wait_for_earlier();
  }
  std::int64_t first_sample = 0;
  if constexpr (Row::kDropped) first_sample = first_sample_of(a.dropout);
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int c = Row::column(thread, s);
    if (c < a.width) raw[s] = Wide::read(a.residual + at + c);
    if (a.delta != nullptr && c < a.width) added[s] = Wide::read(a.delta + at + c);
  }
  float x[kSteps][kWide], total[1] = {0}, square[1] = {0};
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {  // missing columns are 0
    const int c = Row::column(thread, s);
    Wide::unpack(raw[s], x[s]);
    if (a.delta != nullptr && c < a.width) {
      float y[kWide];
      Wide::unpack(added[s], y);
      if constexpr (Row::kDropped) {
        drop(a.dropout, first_sample, static_cast<std::uint32_t>(row), c, y);
        Wide::unpack(Wide::pack(y), y);  // rounded, as dropout alone would store it
      }
#pragma unroll
      for (int i = 0; i < kWide; ++i) x[s][i] += y[i];
      const typename Wide::Raw rounded = Wide::pack(x[s]);
      Wide::write(a.sum + at + c, rounded);
      Wide::unpack(rounded, x[s]);
    }
#pragma unroll
    for (int i = 0; i < kWide; ++i) total[0] += x[s][i];
  }
  const auto width = static_cast<float>(a.width);
  float mean = 0;
  if (a.mean != nullptr) {
    row_sums<kThreads>(total, scratch);
    mean = total[0] / width;
  }
#pragma unroll
  for (int s = 0; s < kSteps; ++s)
    if (Row::column(thread, s) < a.width) {
#pragma unroll
      for (int i = 0; i < kWide; ++i) square[0] += (x[s][i] - mean) * (x[s][i] - mean);
    }
  row_sums<kThreads>(square, scratch + kRowScratch<kThreads, 1>);
  const float rstd = 1.0f / sqrtf(square[0] / width + a.eps);
  if (thread == 0) {
    if (a.mean != nullptr) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int c = Row::column(thread, s);
    if (c >= a.width) continue;
    float w[kWide], b[kWide] = {};
    Wide::unpack(Row::kAlone ? weight[s] : Wide::read(a.weight + c), w);
    if (a.bias != nullptr) Wide::load(a.bias + c, b);
#pragma unroll
    for (int i = 0; i < kWide; ++i) x[s][i] = (x[s][i] - mean) * rstd * (w[i] + a.offset) + b[i];
    Wide::store(a.out + at + c, x[s]);
  }
}

/// Rows that do not fit into registers are read element by element, the second and third time from
/// the cache.
template <class T>
__global__ void __launch_bounds__(kLongRowThreads)
    norm_forward_long_kernel(NormForwardArguments<T> a) {
  follow_earlier();
  CHOIR_SHARED_ARRAY(float, scratch, (2 * kRowScratch<kLongRowThreads, 1>));
  const std::int64_t row = blockIdx.x, at = row * a.width;
  const int thread = static_cast<int>(threadIdx.x);
  const T* x = a.residual + at;
  float total[1] = {0}, square[1] = {0};
  if (a.delta != nullptr) {
    for (int c = thread; c < a.width; c += kLongRowThreads)
      a.sum[at + c] = from_float<T>(to_float(x[c]) + to_float(a.delta[at + c]));
    x = a.sum + at;  // every thread reads back its own elements
  }
  const auto width = static_cast<float>(a.width);
  float mean = 0;
  if (a.mean != nullptr) {
    for (int c = thread; c < a.width; c += kLongRowThreads) total[0] += to_float(x[c]);
    row_sums<kLongRowThreads>(total, scratch);
    mean = total[0] / width;
  }
  for (int c = thread; c < a.width; c += kLongRowThreads) {
    const float d = to_float(x[c]) - mean;
    square[0] += d * d;
  }
  row_sums<kLongRowThreads>(square, scratch + kRowScratch<kLongRowThreads, 1>);
  const float rstd = 1.0f / sqrtf(square[0] / width + a.eps);
  if (thread == 0) {
    if (a.mean != nullptr) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
  for (int c = thread; c < a.width; c += kLongRowThreads)
    a.out[at + c] =
        from_float<T>((to_float(x[c]) - mean) * rstd * (to_float(a.weight[c]) + a.offset) +
                      (a.bias != nullptr ? to_float(a.bias[c]) : 0.0f));
}

// LayerNorm and RMSNorm backward on the GPU; formulas in kernels/norm/norm.hpp. Floor per element:
// d_out, x, d_sum read and d_sum written, 4 transfers (3 without accumulation): 65536 x 768 in 16
// bits, 403 MB, is 94 us on an H200 at 4.3 TB/s.
//
// In the usual kernel a warp waits for its row, sums it, writes, and only then requests the next
// one, while the sums over rows occupy the registers that more warps would need; this costs half of
// the bandwidth. Here a fixed number of blocks (kernels/norm/norm.hpp), as many as 132
// multiprocessors hold at once, iterates over its rows. cp.async loads d_out and x of the next row
// into shared memory while the current one is computed, and d_sum is requested before the first use
// of either. With 16 warps per multiprocessor, 48 KiB and up to 24 more are in flight, compared
// with the 25 KiB that cover the latency. A thread reads only the data that it copied itself, so
// the ring needs no barrier. Arithmetic is about 20 instructions per element, 40 % of issue slots
// at the floor. Costs beyond the floor: first row and last sums of every block (about 3 us), 6 KiB
// of partial sums per block written and read (cached), the second stage (3 us). 65536 x 768 take
// 152 us on an H100, 88 % of copy bandwidth.
//
// d_weight and d_bias are summed over the rows of a warp in registers, over the warps of a block in
// order, and over blocks by add_partials() (kernels/sums/sums.hpp). The result is deterministic and
// the same on every GPU.
//
// With dropout (DroppedRows) a fifth transfer writes the gradient of the branch, and a third sum
// per column is that of its bias. Philox adds 13 instructions per element, 35 in all, for which 5
// transfers of 16 bits leave time for 96 at 3 TB/s. Three sums of 16 columns leave room for 16
// warps with 48 KiB in flight, those of 32 columns for 8 with 96 KiB (about 190 registers on
// sm_90a). 5525 x 512, a norm of FastConformer L, are 28 MB: 9 us at 3 TB/s, in place of 7.5 and 4
// us in two kernels.

template <class T>
struct NormBackwardArguments {
  const T *d_out, *x;        ///< [rows, width]
  const T* weight;           ///< [width]
  const float *mean, *rstd;  ///< [rows]; mean is nullptr for rmsnorm
  T* d_sum;                  ///< [rows, width]
  bool accumulate;
  float* partials;  ///< per block: stride sums of d_weight, then of d_bias, then of the branch
  std::int64_t stride;
  std::int64_t rows, rows_per_block;
  int width;
  float offset;  ///< added to the weight
};
template <class Row>
using NormBackwardPass =
    WithDropout<NormBackwardArguments<typename Row::T>, typename Row::T, Row::kDropped>;

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

/// Sums per column: of d_weight, of d_bias and of the bias of the branch.
template <class Row>
constexpr int kNormSums = Row::kDropped ? 3 : 2;

/// Registers that a thread needs: the sums per column, the old d_sum, and others. Configurations
/// that do not fit 16 warps per multiprocessor get more registers instead.
template <class Row>
constexpr int kNormBackwardRegisters =
    kNormSums<Row>* Row::kValues +
    Row::kSteps* static_cast<int>((sizeof(typename Row::Wide::Raw) + 3) / 4) +
    (Row::kValues > 8 && Row::kWide < 8 ? 80 : 48) + (Row::kDropped ? 16 : 0);
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

/// Adds kCount sums per column of the warps of a block in order, at most two at a time, and writes
/// them as the block's partial sums.
template <class Row, int kCount>
__device__ inline void write_partials(const float (*sums)[Row::kSteps][Row::kWide], float* partials,
                                      std::int64_t stride, int width) {
  static_assert(kCount <= 2, "more do not fit the shared memory of the rings");
  constexpr int kWide = Row::kWide, kThreads = Row::kThreads;
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  const int group = static_cast<int>(threadIdx.x) / kThreads;
  if constexpr (Row::kGroups == 1) {
#pragma unroll
    for (int y = 0; y < kCount; ++y)
#pragma unroll
      for (int s = 0; s < Row::kSteps; ++s) {
        const int c = Row::column(thread, s);
        if (c < width) store_floats<kWide>(partials + y * stride + c, sums[y][s]);
      }
  } else {
    auto* shared = dynamic_shared<float>();  // [kCount][kSteps][kWide][kBlock]
    __syncthreads();                         // the rings, or earlier sums, have been read
#pragma unroll
    for (int y = 0; y < kCount; ++y)
#pragma unroll
      for (int s = 0; s < Row::kSteps; ++s)
#pragma unroll
        for (int i = 0; i < kWide; ++i)
          shared[((y * Row::kSteps + s) * kWide + i) * Row::kBlock +
                 static_cast<int>(threadIdx.x)] = sums[y][s][i];
    __syncthreads();
    for (int piece = group; piece < kCount * Row::kSteps; piece += Row::kGroups) {
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
    norm_backward_kernel(NormBackwardPass<Row> a) {
  follow_earlier();
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

  float sums[kNormSums<Row>][kSteps][kWide] = {};
  std::int64_t first_sample = 0;
  if constexpr (Row::kDropped) first_sample = first_sample_of(a.dropout);
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
        const float g = d[i] * (w[i] + a.offset);
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
        d_x[i] += scaled * (w[i] + a.offset) + (centred * slope + shift);
      }
      const typename Wide::Raw stored = Wide::pack(d_x);
      Wide::write(a.d_sum + at + c, stored);
      if constexpr (Row::kDropped) {  // of the stored values, as the separate operations
        Wide::unpack(stored, d_x);
        drop(a.dropout, first_sample, static_cast<std::uint32_t>(row), c, d_x);
        const typename Wide::Raw branch = Wide::pack(d_x);
        Wide::write(a.dropout.out + at + c, branch);
        Wide::unpack(branch, d_x);
#pragma unroll
        for (int i = 0; i < kWide; ++i) sums[2][s][i] += d_x[i];
      }
    }
  }
  float* const partials = a.partials + blockIdx.x * kNormSums<Row> * a.stride;
  write_partials<Row, 2>(sums, partials, a.stride, a.width);
  if constexpr (Row::kDropped)
    write_partials<Row, 1>(sums + 2, partials + 2 * a.stride, a.stride, a.width);
}

/// Rows that do not fit into registers are read element by element, twice. The sums over rows are
/// in the workspace, where each thread returns to its own columns.
template <class T>
__global__ void CHOIR_ALONE_ON_BLACKWELL(kLongRowThreads)
    norm_backward_long_kernel(NormBackwardArguments<T> a) {
  follow_earlier();
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
      const float g = to_float(d_out[c]) * (to_float(a.weight[c]) + a.offset);
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
      d_sum[c] = from_float<T>(before + scaled * (to_float(a.weight[c]) + a.offset) +
                               (centred * slope + shift));
    }
  }
}

namespace {

/// Shared memory that a block can have on every GPU since sm_80; sm_86 and sm_89 have the least.
/// Wider rows use the other kernel on larger GPUs too, so that the bits are the same.
constexpr std::size_t kMostShared = 99 * 1024;
template <class T>
NormForwardArguments<T> forward_arguments(const ops::NormForward& args) {
  const std::int64_t rows = args.residual.shape.rows(), width = args.residual.shape.back();
  const auto data = [](const TensorView& x) { return static_cast<T*>(x.data); };
  return {data(args.residual),
          data(args.delta),
          data(args.weight),
          data(args.bias),
          data(args.sum),
          data(args.out),
          args.kind == ops::Norm::layernorm ? args.mean.as<float>() : nullptr,
          args.rstd.as<float>(),
          rows,
          static_cast<int>(width),
          static_cast<float>(args.eps),
          static_cast<float>(args.offset)};
}

template <class T>
bool packs_forward(const NormForwardArguments<T>& a) {
  return can_pack<T>(a.width, a.residual, a.delta, a.weight, a.bias, a.sum, a.out);
}

template <class T>
void launch_forward(const Stream& stream, const ops::NormForward& args) {
  const std::int64_t rows = args.residual.shape.rows(), width = args.residual.shape.back();
  const NormForwardArguments<T> a = forward_arguments<T>(args);
  const bool packed = packs_forward(a);
  const auto run = [&](auto share) {
    using Row = decltype(share);
    launch(stream, "norm_forward", norm_forward_kernel<Row>,
           {static_cast<unsigned>(blocks_for(rows, Row::kGroups)), Row::kBlock},
           NormForwardPass<Row>{a});
  };
  using Lone = LoneRows<T>;
  if (are_alone<T>(rows, width, packed))
    return launch_early(stream, "norm_forward", norm_forward_kernel<Lone>,
                        {static_cast<unsigned>(rows), Lone::kBlock}, NormForwardPass<Lone>{a});
  if (!with_row_share<T>(width, packed, run))
    launch(stream, "norm_forward_long", norm_forward_long_kernel<T>,
           {static_cast<unsigned>(rows), kLongRowThreads}, a);
}

template <class T>
bool launch_dropped_forward(const Stream& stream, const ops::NormForward& args,
                            const ops::Dropout& dropout) {
  const std::int64_t rows = args.residual.shape.rows(), width = args.residual.shape.back();
  const NormForwardArguments<T> a = forward_arguments<T>(args);
  const bool packed = packs_forward(a);
  const auto mask = dropout_arguments<T>(dropout, 0, rows, 1);
  using Lone = DroppedRows<LoneRows<T>>;
  if (are_alone<T>(rows, width, packed)) {
    launch_early(stream, "norm_forward+dropout", norm_forward_kernel<Lone>,
                 {static_cast<unsigned>(rows), Lone::kBlock}, NormForwardPass<Lone>{{a}, mask});
    return true;
  }
  return with_dropped_share<T>(width, packed, [&](auto share) {
    using Row = decltype(share);
    launch(stream, "norm_forward+dropout", norm_forward_kernel<Row>,
           {static_cast<unsigned>(blocks_for(rows, Row::kGroups)), Row::kBlock},
           NormForwardPass<Row>{{a}, mask});
  });
}

template <class T>
NormBackwardArguments<T> backward_arguments(const ops::NormBackward& args,
                                            const TensorView& workspace,
                                            const NormBackwardPlan& plan) {
  const std::int64_t rows = args.d_out.shape.rows(), width = args.d_out.shape.back();
  return {args.d_out.as<T>(),
          args.sum.as<T>(),
          args.weight.as<T>(),
          args.kind == ops::Norm::layernorm ? args.mean.as<float>() : nullptr,
          args.rstd.as<float>(),
          args.d_sum.as<T>(),
          args.accumulate,
          static_cast<float*>(workspace.data),
          plan.stride,
          rows,
          plan.rows_per_block,
          static_cast<int>(width),
          static_cast<float>(args.offset)};
}

template <class T>
bool launch_dropped_backward(const Stream& stream, const ops::NormBackward& args,
                             const ops::DroppedGradient& dropped, const NormBackwardPlan& plan) {
  const std::int64_t rows = args.d_out.shape.rows(), width = args.d_out.shape.back();
  const NormBackwardArguments<T> a = backward_arguments<T>(args, dropped.workspace, plan);
  const auto mask = dropout_arguments<T>(dropped.dropout, 0, rows, 1);
  const bool packed = can_pack<T>(width, a.d_out, a.x, a.weight, a.d_sum, a.partials, mask.out);
  return with_dropped_share<T>(width, packed, [&](auto share) {
    using Row = decltype(share);
    static_assert(kNormBackwardShared<Row> <= kMostShared);
    launch(stream, "norm_backward+dropout", norm_backward_kernel<Row>,
           {static_cast<unsigned>(plan.blocks), Row::kBlock, kNormBackwardShared<Row>},
           NormBackwardPass<Row>{{a}, mask});
  });
}

template <class T>
void launch_backward(const Stream& stream, const ops::NormBackward& args,
                     const NormBackwardPlan& plan) {
  const std::int64_t width = args.d_out.shape.back();
  const NormBackwardArguments<T> a = backward_arguments<T>(args, args.workspace, plan);
  const auto blocks = static_cast<unsigned>(plan.blocks);
  const bool packed = can_pack<T>(width, a.d_out, a.x, a.weight, a.d_sum, a.partials);
  bool done = false;
  with_row_share<T>(width, packed, [&](auto share) {
    using Row = decltype(share);
    if constexpr (kNormBackwardShared<Row> <= kMostShared) {
      launch(stream, "norm_backward", norm_backward_kernel<Row>,
             {blocks, Row::kBlock, kNormBackwardShared<Row>}, NormBackwardPass<Row>{a});
      done = true;
    }
  });
  if (!done)
    launch(stream, "norm_backward_long", norm_backward_long_kernel<T>, {blocks, kLongRowThreads},
           a);
}

/// The second stage of the sums of d_weight and d_bias.
void add_norm_sums(const Stream& stream, const ops::NormBackward& args, const float* partials,
                   const NormBackwardPlan& plan) {
  add_partials(stream, {partials,
                        plan.blocks,
                        plan.lines * plan.stride,
                        plan.stride,
                        args.d_out.shape.back(),
                        {args.d_weight.as<float>(),
                         args.d_bias.empty() ? nullptr : args.d_bias.as<float>()}});
}

}  // namespace

void norm_forward(const Stream& stream, const ops::NormForward& args) {
  if (args.residual.count() == 0) return;
  with_element(args.residual.dtype, [&](auto t) { launch_forward<decltype(t)>(stream, args); });
}

void norm_backward(const Stream& stream, const ops::NormBackward& args) {
  const std::int64_t rows = args.d_out.shape.rows(), width = args.d_out.shape.back();
  if (args.d_out.count() == 0) return;
  const NormBackwardPlan plan(rows, width);
  with_element(args.d_out.dtype, [&](auto t) { launch_backward<decltype(t)>(stream, args, plan); });
  add_norm_sums(stream, args, static_cast<float*>(args.workspace.data), plan);
}

bool norm_forward(const Stream& stream, const ops::NormForward& args, const ops::Dropout& dropout) {
  const std::int64_t rows = args.residual.shape.rows();
  if (args.residual.count() == 0) return true;
  if (rows > kMostItems) return false;
  bool done = false;
  with_element(args.residual.dtype,
               [&](auto t) { done = launch_dropped_forward<decltype(t)>(stream, args, dropout); });
  return done;
}

bool norm_backward(const Stream& stream, const ops::NormBackward& args,
                   const ops::DroppedGradient& dropped) {
  const std::int64_t rows = args.d_out.shape.rows(), width = args.d_out.shape.back();
  if (args.d_out.count() == 0) return true;
  if (rows > kMostItems) return false;
  const NormBackwardPlan plan(rows, width, 3);
  auto* const partials = static_cast<float*>(dropped.workspace.data);
  bool done = false;
  with_element(args.d_out.dtype, [&](auto t) {
    done = launch_dropped_backward<decltype(t)>(stream, args, dropped, plan);
  });
  if (!done) return false;
  add_norm_sums(stream, args, partials, plan);
  if (!dropped.d_bias.empty())
    add_partials(stream, {partials + 2 * plan.stride,
                          plan.blocks,
                          plan.lines * plan.stride,
                          0,
                          width,
                          {dropped.d_bias.as<float>(), nullptr}});
  return true;
}

}  // namespace choir::cuda
