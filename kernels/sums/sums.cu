// Sums on the GPU: columns over rows in two stages, gradients of biases, and sums and maps over
// flat memory. First the second stage of sums over rows. Floor: the partial sums are read once,
// mostly from the L2 cache.

#include "kernels/sums/sums.hpp"

#include "kernels/cuda/access.cuh"
#include "kernels/cuda/collective.cuh"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

constexpr int kPartialWarps = 32, kPartialThreads = kPartialWarps * kWarp;

/// One column per lane. Warp w adds the blocks w, w + kPartialWarps ..., then the sums of the warps
/// are added in order. blockIdx.y is the array.
__global__ void __launch_bounds__(kPartialThreads) add_partials_kernel(ColumnPartials a) {
  follow_earlier();
  CHOIR_SHARED_ARRAY(float, sums, kPartialThreads);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t c = std::int64_t{blockIdx.x} * kWarp + lane;
  const float* from = a.partials + blockIdx.y * a.array_stride + c;
  float sum = 0;
  if (c < a.width) {
#pragma unroll 8
    for (std::int64_t b = warp; b < a.blocks; b += kPartialWarps) sum += from[b * a.block_stride];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (warp != 0 || c >= a.width) return;
#pragma unroll
  for (int w = 1; w < kPartialWarps; ++w) sum += sums[w * kWarp + lane];
  float* total = (blockIdx.y == 0 ? a.total[0] : a.total[1]) + c;
  *total += sum;
}

void add_partials(const Stream& stream, const ColumnPartials& partials) {
  const auto tiles = static_cast<unsigned>(blocks_for(partials.width, kWarp));
  launch(stream, "add_partials", add_partials_kernel,
         {dim3(tiles, partials.total[1] == nullptr ? 1 : 2), kPartialThreads}, partials);
}

// Column sums of d_y [N, C]. A few rows are summed in one kernel with a block for each 32-byte
// memory sector of a row: the input was mostly written just before and is still in the L2 cache.
// More rows, or unaligned rows, are summed in two stages, the first of which is here: a block adds
// a tile of columns over its rows and leaves one partial sum per column. Floor: d_y once, 2 bytes
// per 16-bit element (GPT-2, 65536 x 768: 23 us on an H200 at 4.3 TB/s); partial sums add 8 bytes
// per column and block, 2 % there. Each thread keeps four loads of 16 bytes in flight.

/// Adds the columns at `from` of rows first, first + kStep ... below last, with kUnroll loads at a
/// time.
template <class T, bool kPacked, int kStep, int kUnroll, int kWide>
__device__ inline void add_rows(const T* from, std::int64_t first, std::int64_t last,
                                std::int64_t width, float (&sum)[kWide]) {
  using Wide = Access<T, kPacked>;
  for (std::int64_t r = first; r < last; r += kUnroll * kStep) {
    typename Wide::Raw raw[kUnroll] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (r + u * kStep < last) raw[u] = Wide::read(from + (r + u * kStep) * width);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {  // missing rows are 0
      float x[kWide];
      Wide::unpack(raw[u], x);
#pragma unroll
      for (int i = 0; i < kWide; ++i) sum[i] += x[i];
    }
  }
}

/// Maximum number of rows for the single kernel: a block then reads half a megabyte.
constexpr std::int64_t kFewRows = 16384;

constexpr int kSectorWarps = 32;  ///< maximum
constexpr int kSectorLanes = 2;   ///< lanes per row

/// Threads of a block for `rows` rows: one pair of lanes per row, up to the limit of a block.
inline unsigned sector_threads(std::int64_t rows) {
  return static_cast<unsigned>(
      kWarp * std::min<std::int64_t>(kSectorWarps, blocks_for(rows, kWarp / kSectorLanes)));
}

template <class T>
constexpr int kSectorTile = kSectorLanes* kPack<T>;

/// Two lanes read a row of the block's columns, and the pairs of lanes take rows in turn. The sums
/// of a warp are added over its lanes, then those of the warps in order.
template <class T>
__global__ void __launch_bounds__(kSectorWarps* kWarp)
    sector_sums_kernel(std::int64_t rows, std::int64_t width, const T* d_y, float* d_bias) {
  follow_earlier();
  using Wide = Access<T, true>;
  constexpr int kWide = Wide::kWide, kTile = kSectorTile<T>;
  // With fewer threads every pair of lanes has at most one row.
  constexpr int kStep = kSectorWarps * kWarp / kSectorLanes;
  CHOIR_SHARED_ARRAY(float, sums, kSectorWarps* kTile);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const std::int64_t tile = std::int64_t{blockIdx.x} * kTile;
  const std::int64_t c = tile + lane % kSectorLanes * kWide;
  float sum[kWide] = {};
  if (c < width) add_rows<T, true, kStep, 8>(d_y + c, thread / kSectorLanes, rows, width, sum);
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
#pragma unroll
    for (int offset = kWarp / 2; offset >= kSectorLanes; offset /= 2)
      sum[i] += __shfl_xor_sync(kAllLanes, sum[i], offset);
    if (lane < kSectorLanes) sums[warp * kTile + lane * kWide + i] = sum[i];
  }
  __syncthreads();
  if (thread >= kTile || tile + thread >= width) return;
  float total = sums[thread];
#pragma unroll 8
  for (int w = 1; w < static_cast<int>(blockDim.x) / kWarp; ++w) total += sums[w * kTile + thread];
  d_bias[tile + thread] += total;
}

constexpr int kColumnWarps = 8, kColumnThreads = kColumnWarps * kWarp;

/// Columns per block.
template <class T, bool kPacked>
constexpr int kColumnTile = kWarp* Access<T, kPacked>::kWide;

/// Warp w adds the rows first + w, first + w + kColumnWarps ...; the sums of the warps are added in
/// order.
template <class T, bool kPacked>
__global__ void __launch_bounds__(kColumnThreads)
    bias_gradient_kernel(std::int64_t rows, std::int64_t rows_per_block, std::int64_t width,
                         const T* d_y, std::int64_t stride, float* partials) {
  follow_earlier();
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide, kTile = kColumnTile<T, kPacked>;
  CHOIR_SHARED_ARRAY(float, sums, kColumnWarps* kTile);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t tile = std::int64_t{blockIdx.x} * kTile, c = tile + lane * kWide;
  const std::int64_t first = blockIdx.y * rows_per_block;
  const std::int64_t last = min(first + rows_per_block, rows);
  float sum[kWide] = {};
  if (c < width) add_rows<T, kPacked, kColumnWarps, 4>(d_y + c, first + warp, last, width, sum);
    // Stored value by value, so that neighbouring lanes use neighbouring banks.
#pragma unroll
  for (int i = 0; i < kWide; ++i) sums[(warp * kWide + i) * kWarp + lane] = sum[i];
  __syncthreads();
  for (int t = static_cast<int>(threadIdx.x); t < kTile; t += kColumnThreads) {
    const int column = t % kWarp * kWide + t / kWarp;  // value t / 32 of lane t % 32
    float total = sums[t];
#pragma unroll
    for (int w = 1; w < kColumnWarps; ++w) total += sums[w * kTile + t];
    if (tile + column < width) partials[blockIdx.y * stride + tile + column] = total;
  }
}

void bias_gradient(const Stream& stream, const TensorView& d_y, const TensorView& d_bias,
                   const TensorView& workspace) {
  if (d_y.count() == 0) return;
  const std::int64_t rows = d_y.shape.rows(), width = d_y.shape.back();
  with_element(d_y.dtype, [&](auto t) {
    using T = decltype(t);
    with_bool(can_pack<T>(width, d_y.as<T>()), [&](auto packed) {
      constexpr bool kPacked = decltype(packed)::value;
      if constexpr (kPacked) {
        if (rows <= kFewRows)
          return launch(
              stream, "sector_sums", sector_sums_kernel<T>,
              {static_cast<unsigned>(blocks_for(width, kSectorTile<T>)), sector_threads(rows)},
              rows, width, d_y.as<T>(), d_bias.as<float>());
      }
      const BiasGradientPlan plan(rows, width);
      auto* partials = static_cast<float*>(workspace.data);
      launch(stream, "bias_gradient", bias_gradient_kernel<T, kPacked>,
             {dim3(static_cast<unsigned>(blocks_for(width, kColumnTile<T, kPacked>)),
                   static_cast<unsigned>(plan.blocks)),
              kColumnThreads},
             rows, plan.rows_per_block, width, d_y.as<T>(), plan.stride, partials);
      add_partials(stream,
                   {partials, plan.blocks, plan.stride, 0, width, {d_bias.as<float>(), nullptr}});
    });
  });
}

// Sums over flat memory and flat maps on the GPU; the formulas are in kernels/sums/sums.hpp.
// The orders of addition are independent of the card:
// - sums_of_squares: a block sums a chunk, in double: 4 sums per thread over its elements
//   4 t + 1024 j, joined as a tree. The order differs from that of the CPU.
// - tree_sums: the tree of the CPU, bit for bit. Leaves beyond the end are -0, which changes no
//   sum, so any tree may be filled up to a power of two.
// Floor: every operand once.

/// out = a + b. Floor: 3 element transfers.
template <class T>
__global__ void add_kernel(std::int64_t n, bool packed, const T* a, const T* b, T* out) {
  follow_earlier();
  map_elements(
      n, packed, out, [](float x, float y) { return x + y; }, a, b);
}

/// x *= factor. Floor: 2 element transfers.
__global__ void scale_kernel(std::int64_t n, bool packed, float* x, float factor) {
  follow_earlier();
  map_elements(
      n, packed, x, [factor](float value) { return value * factor; }, x);
}

/// to = from, 8 elements a step (packed: both aligned to 16 bytes). Floor: both once.
template <class From, class To>
__global__ void cast_kernel(std::int64_t n, bool packed, const From* from, To* to) {
  wait_for_earlier();
  constexpr int kWide = 8;
  using In = Access<From, true>;
  using Out = Access<To, true>;
  const std::int64_t steps = packed ? n / kWide : 0;
  for (std::int64_t s = global_thread(); s < steps; s += global_threads()) {
    float x[kWide];
#pragma unroll
    for (int i = 0; i < kWide; i += In::kWide) In::load(from + s * kWide + i, x + i);
#pragma unroll
    for (int i = 0; i < kWide; i += Out::kWide) Out::store(to + s * kWide + i, x + i);
  }
  for (std::int64_t i = steps * kWide + global_thread(); i < n; i += global_threads())
    to[i] = from_float<To>(to_float(from[i]));
}

/// Tensors that one kernel sums; they are passed as kernel arguments, whose limit is 4 KiB.
template <class A>
struct SummedTensors {
  static constexpr int kMost = 128;
  const A* x[kMost];
  double* sums[kMost];
  std::int64_t n[kMost];
  unsigned first_block[kMost];  ///< first block of each tensor, ascending
  int count = 0;
};

constexpr int kSquareThreads = 256;

/// sums[chunk] = sum of x^2. Grid: the chunks of kChunk elements of all tensors.
template <int kChunk>
__global__ void __launch_bounds__(kSquareThreads)
    sums_of_squares_kernel(const __grid_constant__ SummedTensors<float> tensors) {
  follow_earlier();
  CHOIR_SHARED_ARRAY(double, scratch, kSquareThreads / kWarp);
  constexpr int kStep = 4 * kSquareThreads, kAhead = 8;
  static_assert(kChunk % (kStep * kAhead) == 0);
  int tensor = 0;
  for (int end = tensors.count; end - tensor > 1;) {
    const int middle = (tensor + end) / 2;
    (tensors.first_block[middle] <= blockIdx.x ? tensor : end) = middle;
  }
  const float* const x = tensors.x[tensor];
  const std::int64_t n = tensors.n[tensor];
  const bool packed = reinterpret_cast<std::uintptr_t>(x) % 16 == 0;
  const unsigned chunk = blockIdx.x - tensors.first_block[tensor];
  const std::int64_t first = std::int64_t{chunk} * kChunk + 4 * std::int64_t{threadIdx.x};
  double sums[4] = {};
#pragma unroll 1
  for (int j = 0; j < kChunk / kStep; j += kAhead) {
    float4 values[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const std::int64_t i = first + (j + k) * kStep;
      values[k] = make_float4(0, 0, 0, 0);
      if (packed && i + 4 <= n) {
        values[k] = *reinterpret_cast<const float4*>(x + i);
      } else {
        if (i < n) values[k].x = x[i];
        if (i + 1 < n) values[k].y = x[i + 1];
        if (i + 2 < n) values[k].z = x[i + 2];
        if (i + 3 < n) values[k].w = x[i + 3];
      }
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const double v[4] = {values[k].x, values[k].y, values[k].z, values[k].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] += v[i] * v[i];
    }
  }
  const double sum =
      block_reduce<Sum, kSquareThreads>((sums[0] + sums[2]) + (sums[1] + sums[3]), scratch);
  if (threadIdx.x == 0) tensors.sums[tensor][chunk] = sum;
}

constexpr int kTreeThreads = 512;
constexpr int kTreeLeaves = 256;              ///< leaves of a subtree that a warp sums
constexpr int kTreeParts = 2 * kTreeThreads;  ///< such subtrees at a time
constexpr std::int64_t kTreeRound = std::int64_t{kTreeParts} * kTreeLeaves;

/// The tree over the lanes, neighbours first; lane 0 gets the result.
__device__ inline double tree_of_lanes(double value) {
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2)
    value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

/// sums[0] = the tree over x, with a block per tensor. Used for partial sums and the losses of a
/// batch.
template <class A>
__global__ void __launch_bounds__(kTreeThreads)
    tree_sums_kernel(const __grid_constant__ SummedTensors<A> tensors) {
  follow_earlier();
  const A* const x = tensors.x[blockIdx.x];
  const std::int64_t n = tensors.n[blockIdx.x];
  CHOIR_SHARED_ARRAY(double, parts, kTreeParts);
  CHOIR_SHARED_ARRAY(double, warps, kTreeThreads / kWarp);
  constexpr int kPerLane = kTreeLeaves / kWarp;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  // Pending subtrees of earlier rounds, like the carries of a binary counter. Used by thread 0.
  CHOIR_SHARED_ARRAY(double, pending, 64);
  int depth = 0;
  std::uint64_t rounds = 0;
  for (std::int64_t first = 0; first < n; first += kTreeRound, ++rounds) {
    for (int part = thread / kWarp; part < kTreeParts; part += kTreeThreads / kWarp) {
      const std::int64_t begin = first + std::int64_t{part} * kTreeLeaves;
      if (begin >= n) {  // true for most of the tree if there are few elements
        if (lane == 0) parts[part] = -0.0;
        continue;
      }
      const std::int64_t at = begin + lane * kPerLane;
      double leaves[kPerLane];
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        leaves[i] = at + i < n ? static_cast<double>(x[at + i]) : -0.0;
#pragma unroll
      for (int width = 1; width < kPerLane; width *= 2)
#pragma unroll
        for (int i = 0; i < kPerLane; i += 2 * width) leaves[i] += leaves[i + width];
      const double sum = tree_of_lanes(leaves[0]);
      if (lane == 0) parts[part] = sum;
    }
    __syncthreads();
    const double sum = tree_of_lanes(parts[2 * thread] + parts[2 * thread + 1]);
    if (lane == 0) warps[thread / kWarp] = sum;
    __syncthreads();
    if (thread < kWarp) {
      double round = tree_of_lanes(lane < kTreeThreads / kWarp ? warps[lane] : -0.0);
      if (thread == 0) {
        for (std::uint64_t r = rounds; r & 1u; r >>= 1) round = pending[--depth] + round;
        pending[depth++] = round;
      }
    }
    // `warps` is only written again after the next round's barrier; `parts` was read before this
    // one.
  }
  if (thread != 0) return;
  double sum = depth > 0 ? pending[--depth] : 0.0;
  while (depth > 0) sum = pending[--depth] + sum;
  *tensors.sums[blockIdx.x] = sum;
}

namespace {

template <class T, class... P>
bool aligned(const P*... pointers) {
  return can_pack<T>(0, pointers...);
}

/// The elements of a tensor, which must be f32 on this device.
float* floats(const TensorView& x) {
  if (x.dtype != DType::f32) refuse_element(x.dtype);
  return x.as<float>();
}

/// Calls launch_one(group, blocks of the group) for groups of as many tensors as a kernel takes.
template <class A, class Blocks, class Launch>
void for_groups_of(std::span<const ops::Summed> tensors, const Blocks& blocks_of,
                   const Launch& launch_one) {
  SummedTensors<A> some;
  std::int64_t blocks = 0;
  const auto flush = [&] {
    if (blocks > 0) launch_one(some, static_cast<unsigned>(blocks));
    some.count = 0, blocks = 0;
  };
  for (const ops::Summed& one : tensors) {
    if (some.count == SummedTensors<A>::kMost) flush();
    if constexpr (std::is_same_v<A, float>) floats(one.x);
    some.x[some.count] = one.x.as<A>();
    some.sums[some.count] = one.sums.as<double>();
    some.n[some.count] = one.x.count();
    some.first_block[some.count++] = static_cast<unsigned>(blocks);
    blocks += blocks_of(one);
  }
  flush();
}

}  // namespace

void add(const Stream& stream, const TensorView& a, const TensorView& b, const TensorView& out) {
  const std::int64_t n = a.count();
  if (n == 0) return;
  with_element(a.dtype, [&](auto t) {
    using T = decltype(t);
    launch(stream, "add", add_kernel<T>,
           {elementwise_blocks(blocks_for(n, kPack<T>)), kElementwiseThreads}, n,
           aligned<T>(a.data, b.data, out.data), a.as<T>(), b.as<T>(), out.as<T>());
  });
}

void scale(const Stream& stream, const TensorView& x, double factor) {
  const std::int64_t n = x.count();
  float* const values = floats(x);
  if (n == 0) return;
  launch(stream, "scale", scale_kernel,
         {elementwise_blocks(blocks_for(n, kPack<float>)), kElementwiseThreads}, n,
         aligned<float>(values), values, static_cast<float>(factor));
}

void cast(const Stream& stream, const TensorView& from, const TensorView& to) {
  const std::int64_t n = to.count();
  if (n == 0) return;
  with_element(from.dtype, [&](auto f) {
    with_element(to.dtype, [&](auto t) {
      using From = decltype(f);
      using To = decltype(t);
      launch(stream, "cast", cast_kernel<From, To>,
             {elementwise_blocks(blocks_for(n, 8)), kElementwiseThreads}, n,
             aligned<From>(from.data, to.data), from.as<From>(), to.as<To>());
    });
  });
}

void sums_of_squares(const Stream& stream, std::span<const ops::Summed> tensors) {
  for_groups_of<float>(
      tensors, [](const ops::Summed& one) { return one.sums.count(); },
      [&](const SummedTensors<float>& some, unsigned blocks) {
        launch(stream, "sums_of_squares", sums_of_squares_kernel<int{ops::kNormChunk}>,
               {blocks, kSquareThreads}, some);
      });
}

void tree_sums(const Stream& stream, std::span<const ops::Summed> tensors) {
  const auto sum = [&](auto type) {
    using A = decltype(type);
    for_groups_of<A>(
        tensors, [](const ops::Summed&) { return 1; },
        [&](const SummedTensors<A>& some, unsigned blocks) {
          launch(stream, "tree_sums", tree_sums_kernel<A>, {blocks, kTreeThreads}, some);
        });
  };
  tensors.front().x.dtype == DType::f64 ? sum(double{}) : sum(float{});
}

void zero(const Stream& stream, const TensorView& x) {
  stream.zero(x.data, x.bytes());
}

void copy(const Stream& stream, const TensorView& from, const TensorView& to) {
  stream.copy(to.data, from.data, from.bytes());
}

// Counts of targets and running sums of losses. A batch has at most some 10^5 targets, so one block
// counts them.
namespace {

constexpr int kCountThreads = 512;

/// Counted as integers, so the order of the additions changes nothing.
__global__ void __launch_bounds__(kCountThreads)
    count_targets_kernel(const std::int32_t* unmasked, std::int64_t n, const std::int32_t* lengths,
                         std::int64_t rows, double number, double* count) {
  follow_earlier();
  CHOIR_SHARED_ARRAY(unsigned long long, scratch, kCountThreads / kWarp);
  const int thread = static_cast<int>(threadIdx.x);
  unsigned long long counted = 0;
  for (std::int64_t i = thread; i < n; i += kCountThreads)
    counted += unmasked[i] >= 0 ? 1ull : 0ull;
  for (std::int64_t i = thread; i < rows; i += kCountThreads)
    counted += static_cast<unsigned long long>(lengths[i]);
  counted = block_reduce<Sum, kCountThreads>(counted, scratch);
  if (thread == 0) *count = number + static_cast<double>(counted);
}

__global__ void add_losses_kernel(const double* own, double* sum, double* count) {
  follow_earlier();
  *sum += own[0];
  *count += own[1];
}

const std::int32_t* ids_of(const TensorView& x) {
  return static_cast<const std::int32_t*>(x.data);
}

std::int64_t size_of_optional(const TensorView& x) {
  return x.empty() ? 0 : x.count();
}

}  // namespace

void count_targets(const Stream& stream, const ops::CountTargets& args) {
  launch(stream, "count_targets", count_targets_kernel, {1, kCountThreads}, ids_of(args.unmasked),
         size_of_optional(args.unmasked), ids_of(args.lengths), size_of_optional(args.lengths),
         args.number, args.count.as<double>());
}

void add_losses(const Stream& stream, const ops::AddLosses& args) {
  launch(stream, "add_losses", add_losses_kernel, {1, 1}, args.own.as<double>(),
         args.sum.as<double>(), args.count.as<double>());
}

}  // namespace choir::cuda
