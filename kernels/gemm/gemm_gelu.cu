// A product of 16-bit elements with the exact GELU or its derivative, in one kernel of sm_90a; no
// library has this epilogue. Formulas: kernels/activation/activation.hpp.
//
// Forward: before [m, n] = X [m, k] W^T + b, W [n, k], rounded and kept if it is requested; C =
// gelu(before). Gradient: C = (dY [m, k] W [k, n]) gelu'(before), the product rounded first. Both
// have the bits of the separate operations after a product with the same sums. A sum has a fixed
// order, and no two blocks share one.
//
// Floor: 2 m n k FLOPs; every pass over an m x n matrix that is saved is worth 2 m n bytes: two of
// the five that product and activation make, forward and backward together. On an H100 the GELU of
// the GPT of 85M parameters takes 8.1 ms of a step of 86.4, of which 3.2 remain as stores and loads
// of the epilogue.
// Approach: a block for each multiprocessor takes tiles of 128 x 128 in turn. One thread starts the
// copies of A and B, five steps of 64 ahead. Two warp groups take every other tile: while one
// multiplies (wgmma m64n128k16, two rows of tiles, 128 registers of sums), the other is in its
// epilogue, whose arithmetic (about 25 instructions an element, 1.9 us a tile) and traffic are thus
// hidden behind the products (4.2 us a tile of k = 768 at 790 TFLOP/s). A group begins to multiply
// when the other has seen its last copies: a wait for a phase of a barrier is only right if the
// phase before it has ended.
// Tiles of 128 x 128 take 64 bytes a cycle from L2 at the full rate of the tensor cores, which is
// the bound: predicted 500 to 530 TFLOP/s, cuBLASLt measured 737 with larger tiles and clusters of
// blocks. Predicted for the GPT of 85M: 7.0 ms of its products become 9.8 to 10.3, and 4.9 ms of
// activation disappear, so that the step of 86.4 is 1.6 to 2.1 ms shorter. Nobody has measured
// this, so only model.gelu_in_product requests it. Next lever: clusters of two blocks that share a
// tile of B.

#include <algorithm>

#include "kernels/activation/activation_math.cuh"
#include "kernels/cuda/access.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/gemm/gemm.hpp"
#include "src/device/cuda.hpp"

namespace choir::cuda {

/// Memory of a block: a ring of tiles of A and B, and 16 rows of results for each multiplying warp.
template <class T, bool kGradient>
struct GeluProduct {
  static constexpr int kRows = 128, kColumns = 128, kInner = 64, kStages = 5;
  static constexpr int kGroups = 2, kGroupWarps = ptx::kWarpGroup / kWarp;
  static constexpr int kThreads = (1 + kGroups) * ptx::kWarpGroup;
  /// Registers: one group of warps issues copies, two multiply.
  static constexpr int kFeeding = 24, kMultiplying = 240;
  static_assert(kFeeding + kGroups * kMultiplying <= 3 * 168);
  static constexpr int kTile = kRows * kInner;  ///< elements of a tile, of A or of B
  static constexpr int kStaged = 16 * kColumns;
  static constexpr unsigned kStageBytes = 2 * kTile * sizeof(T);
  /// Bytes between groups of 64 columns of a tile of B whose rows are summed over.
  static constexpr unsigned kSlabBytes = kInner * 64 * sizeof(T);

  struct Barriers {
    ptx::Barrier full[kStages], free[kStages];
    ptx::Barrier turns[kGroups];  ///< a group may multiply, because the other has all its tiles
  };
  static constexpr std::size_t kTileBytes =
      sizeof(T) * (2 * kStages * kTile + kGroups * kGroupWarps * kStaged);
  static constexpr std::size_t kSharedBytes = kTileBytes + sizeof(Barriers);
  static_assert(kSharedBytes <= kHopperSharedBytes && kColumns == kRows);

  T* memory;

  __device__ T* a(int stage) const { return memory + 2 * stage * kTile; }
  __device__ T* b(int stage) const { return a(stage) + kTile; }
  __device__ T* staged(int warp) const { return memory + 2 * kStages * kTile + warp * kStaged; }
  __device__ Barriers& barriers() const {
    return *reinterpret_cast<Barriers*>(memory + kTileBytes / sizeof(T));
  }
  __device__ void init_barriers() const {
    Barriers& all = barriers();
    for (int s = 0; s < kStages; ++s) {
      ptx::barrier_init(&all.full[s], 1);
      ptx::barrier_init(&all.free[s], kGroupWarps);
    }
    for (int g = 0; g < kGroups; ++g) ptx::barrier_init(&all.turns[g], kGroupWarps);
    ptx::fence_async_proxy();
  }
  /// Starts the copies of one step of a tile at (row, column) to a stage.
  __device__ void load(const CUtensorMap& a_map, const CUtensorMap& b_map, int row, int column,
                       int inner, int stage) const {
    ptx::Barrier* const full = &barriers().full[stage];
    ptx::barrier_arrive_expecting(full, kStageBytes);
    ptx::load_box(a(stage), &a_map, inner, 0, row, 0, full);
    if constexpr (kGradient) {
      ptx::load_box(b(stage), &b_map, column, 0, inner, 0, full);
      ptx::load_box(b(stage) + kTile / 2, &b_map, column + 64, 0, inner, 0, full);
    } else {
      ptx::load_box(b(stage), &b_map, inner, 0, column, 0, full);
    }
  }
  /// Starts sums (+)= A B of a stage; sums [r] are those of the rows from 64 r on.
  __device__ void multiply(float (&sums)[2][16][4], int stage, bool adds) const {
#pragma unroll
    for (int k = 0; k < kInner / 16; ++k) {
      const std::uint64_t right = kGradient
                                      ? ptx::matrix_descriptor(b(stage) + k * 16 * 64, kSlabBytes)
                                      : ptx::matrix_descriptor(b(stage) + k * 16, 0);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        ptx::wgmma<T, kGradient>(sums[r],
                                 ptx::matrix_descriptor(a(stage) + r * 64 * kInner + k * 16, 0),
                                 right, adds || k > 0);
    }
  }
};

template <class T>
struct GeluArgs {
  int m, n, k;
  const T* bias;  ///< [n] or nullptr
  T* before;      ///< [m, n]; forward: or nullptr
  T* c;           ///< [m, n]
};

/// The tiles of a product in the order in which blocks take them: bands of eight tiles of columns,
/// so that the tiles under way at a time share rows of A and of B in L2.
struct GeluTiles {
  int down, across;  ///< tiles of rows and of columns

  __device__ int count() const { return down * across; }
  /// First row and column of a tile.
  __device__ int2 at(int tile) const {
    constexpr int kBand = 8;
    const int band = tile / (kBand * down), inside = tile - band * kBand * down;
    const int width = min(kBand, across - kBand * band);
    return {inside / width * 128, (kBand * band + inside % width) * 128};
  }
};

/// Writes 16 rows of a warp's sums through `staged`, from which lanes take whole chunks.
template <class T, bool kGradient>
__device__ inline void finish_rows(const float (&sums)[16][4], const GeluArgs<T>& a, T* staged,
                                   int row, int column) {
  using Block = GeluProduct<T, kGradient>;
  using Math = MathFor<T>;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  // Chunks are permuted, so that neighbouring rows are in different banks.
  const auto chunk_at = [&](int r, int chunk) {
    return staged + r * Block::kColumns + (chunk ^ r % 8) * kPack<T>;
  };
#pragma unroll
  for (int n = 0; n < 16; ++n) {
    float bias[2] = {0, 0};
    const int at = column + 8 * n + lane % 4 * 2;
    if (!kGradient && a.bias && at < a.n) {
      const std::uint32_t pair = *reinterpret_cast<const std::uint32_t*>(a.bias + at);
      bias[0] = ptx::unpack_low<T>(pair), bias[1] = ptx::unpack_high<T>(pair);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      T* const to = chunk_at(lane / 4 + 8 * half, n) + lane % 4 * 2;
      *reinterpret_cast<std::uint32_t*>(to) =
          ptx::pack<T>(sums[n][2 * half] + bias[0], sums[n][2 * half + 1] + bias[1]);
    }
  }
  __syncwarp();
  constexpr int kChunks = Block::kColumns / kPack<T>;
#pragma unroll 2
  for (int i = lane; i < 16 * kChunks; i += kWarp) {
    const int r = i / kChunks, chunk = i % kChunks;
    if (row + r >= a.m || column + chunk * kPack<T> >= a.n) continue;
    const std::int64_t at = std::int64_t{row + r} * a.n + column + chunk * kPack<T>;
    const uint4 raw = *reinterpret_cast<const uint4*>(chunk_at(r, chunk));
    Pack<T> x = unpacked<T>(raw);
    if constexpr (kGradient) {
      const Pack<T> before = load_pack(a.before + at);
#pragma unroll
      for (int e = 0; e < kPack<T>; ++e) x.x[e] *= Gelu<Math>::slope(before.x[e]);
    } else {
      if (a.before) ptx::store_16(a.before + at, raw);
#pragma unroll
      for (int e = 0; e < kPack<T>; ++e) x.x[e] = Gelu<Math>::value(x.x[e]);
    }
    ptx::store_16(a.c + at, packed(x));
  }
  __syncwarp();  // the next rows are staged in the same memory
}

template <class T, bool kGradient>
__global__ void __launch_bounds__(GeluProduct<T, kGradient>::kThreads, 1)
    gemm_gelu_kernel(const __grid_constant__ CUtensorMap a_map,
                     const __grid_constant__ CUtensorMap b_map,
                     const __grid_constant__ GeluArgs<T> a) {
  follow_earlier();
  if constexpr (ptx::kHopper) {
    using Block = GeluProduct<T, kGradient>;
    const Block block{reinterpret_cast<T*>(ptx::swizzled_shared())};
    const GeluTiles tiles{static_cast<int>(blocks_for(a.m, Block::kRows)),
                          static_cast<int>(blocks_for(a.n, Block::kColumns))};
    const int steps = static_cast<int>(blocks_for(a.k, Block::kInner));
    const int first = static_cast<int>(blockIdx.x), stride = static_cast<int>(gridDim.x);
    if (threadIdx.x == 0) block.init_barriers();
    __syncthreads();

    auto& barriers = block.barriers();
    const int role = static_cast<int>(threadIdx.x / ptx::kWarpGroup);
    if (role == 0) {
      ptx::give_registers<Block::kFeeding>();
      if (threadIdx.x == 0) {
        int stage = 0;
        unsigned parity = 1;  // in the first round every stage is free
        for (int tile = first; tile < tiles.count(); tile += stride) {
          const int2 at = tiles.at(tile);
          for (int step = 0; step < steps; ++step) {
            ptx::barrier_wait(&barriers.free[stage], parity);
            block.load(a_map, b_map, at.x, at.y, step * Block::kInner, stage);
            if (++stage == Block::kStages) stage = 0, parity ^= 1;
          }
        }
      }
    } else {
      ptx::take_registers<Block::kMultiplying>();
      const int warp = static_cast<int>(threadIdx.x / kWarp) - Block::kGroupWarps;
      const bool speaks = threadIdx.x % kWarp == 0;
      float sums[2][16][4];
      // Steps of all tiles before this group's, which decide on the stage and its parity.
      int done = (role - 1) * steps;
      unsigned parity = static_cast<unsigned>(role) % 2;  // the first group does not wait at first
      for (int tile = first + (role - 1) * stride; tile < tiles.count();
           tile += Block::kGroups * stride, done += Block::kGroups * steps, parity ^= 1) {
        const auto start = [&](int step) {
          const int at = done + step, stage = at % Block::kStages;
          ptx::barrier_wait(&barriers.full[stage], static_cast<unsigned>(at / Block::kStages % 2));
          ptx::wgmma_fence();
          block.multiply(sums, stage, step > 0);
          ptx::wgmma_commit();
        };
        ptx::barrier_wait(&barriers.turns[role - 1], parity);
        ptx::wgmma_fence(sums[0], sums[1]);
        start(0);
        for (int step = 1; step < steps; ++step) {
          start(step);
          ptx::wgmma_wait<1>();  // the products of the step before are complete
          if (speaks) ptx::barrier_arrive(&barriers.free[(done + step - 1) % Block::kStages]);
        }
        if (speaks) ptx::barrier_arrive(&barriers.turns[2 - role]);
        ptx::wgmma_wait<0>(sums[0], sums[1]);
        if (speaks) ptx::barrier_arrive(&barriers.free[(done + steps - 1) % Block::kStages]);
        const int2 at = tiles.at(tile);
#pragma unroll
        for (int r = 0; r < 2; ++r)
          finish_rows<T, kGradient>(sums[r], a, block.staged(warp),
                                    at.x + 64 * r + warp % Block::kGroupWarps * 16, at.y);
      }
    }
  }
}

namespace {

template <class T, bool kGradient>
void launch_gemm_gelu(const Stream& stream, const GemmArgs& args) {
  using Block = GeluProduct<T, kGradient>;
  const auto map = [](CUtensorMap& to, const void* data, std::int64_t rows, std::int64_t width,
                      int box_rows) {
    set_tensor_map(to, {data, DTypeOf<T>::value, 1, rows, 1, width, rows * width, width, box_rows});
  };
  CUtensorMap a_map, b_map;
  map(a_map, args.a, args.m, args.k, Block::kRows);
  if constexpr (kGradient)
    map(b_map, args.b, args.k, args.n, Block::kInner);
  else
    map(b_map, args.b, args.n, args.k, Block::kColumns);
  const std::int64_t tiles = blocks_for(args.m, Block::kRows) * blocks_for(args.n, Block::kColumns);
  const std::int64_t blocks =
      std::min<std::int64_t>(tiles, card_of(stream.device())->multiprocessors);
  launch_hopper(
      stream, kGradient ? "gemm_gelu_gradient" : "gemm_gelu", gemm_gelu_kernel<T, kGradient>,
      {dim3(static_cast<unsigned>(blocks)), Block::kThreads, Block::kSharedBytes}, a_map, b_map,
      GeluArgs<T>{static_cast<int>(args.m), static_cast<int>(args.n), static_cast<int>(args.k),
                  static_cast<const T*>(args.bias), static_cast<T*>(args.pre_activation),
                  static_cast<T*>(args.c)});
}

/// f(T{}, gradient) with the type and the direction of a product, both 16-bit.
template <class F>
auto with_gelu_product(const GemmArgs& args, const F& f) {
  const bool gradient = args.epilogue == ops::GemmEpilogue::gelu_gradient;
  const auto of_type = [&](auto t) {
    return gradient ? f(t, std::true_type{}) : f(t, std::false_type{});
  };
  return args.in == DType::bf16 ? of_type(bf16{}) : of_type(f16{});
}

}  // namespace

bool gemm_gelu_offers(const Stream& stream, const GemmArgs& args) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  const bool gradient = args.epilogue == ops::GemmEpilogue::gelu_gradient;
  if (!gradient && args.epilogue != ops::GemmEpilogue::gelu) return false;
  if (size_of(args.in) != 2 || args.out != args.in || args.transpose_a || args.accumulate ||
      args.batch != 1 || args.transpose_b == gradient)
    return false;
  if (args.k <= 0 || args.m >= kMost || args.n >= kMost || args.k >= kMost || args.n % 8 != 0 ||
      args.k % 8 != 0)
    return false;
  for (const void* address : {args.a, args.b, static_cast<const void*>(args.c), args.bias,
                              static_cast<const void*>(args.pre_activation)})
    if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) return false;
  const Card* card = card_of(stream.device());
  return card && card->major == 9 && with_gelu_product(args, [](auto t, auto backward) {
           return has_hopper_code(gemm_gelu_kernel<decltype(t), backward()>);
         });
}

void gemm_gelu(const Stream& stream, const GemmArgs& args) {
  with_gelu_product(args, [&](auto t, auto backward) {
    launch_gemm_gelu<decltype(t), backward()>(stream, args);
  });
}

}  // namespace choir::cuda
