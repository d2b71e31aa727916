#pragma once
// The instructions of sm_90a, each with a twin that test/host_cuda executes: matrix products that a
// group of four warps issues and waits for later (wgmma), boxes of tensors that a copy engine loads
// (TMA), and the shared-memory barriers that synchronise both. Source of the semantics: PTX ISA
// 9.0; the section is given with every instruction. The body of a kernel is inside `if constexpr
// (kHopper)`. On the host: tensor maps for the copy engine, and launches.
//
// Layout of a tile after a load by the copy engine: rows of 128 bytes (64 elements), so wider tiles
// are several slabs of 64 columns. Chunk c of row r is stored at c ^ r % 8 (128-byte swizzle: bits
// 4-6 of an address ^= bits 7-9), so that neither eight rows nor eight chunks share a bank.

#include <cuda.h>

#include "kernels/cuda/ptx.cuh"

#if defined(CHOIR_HOST_CUDA)
#include "test/host_cuda/hopper.hpp"
#endif

namespace choir::cuda::ptx {

/// True if this compilation may use these instructions.
#if defined(CHOIR_HOST_CUDA) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool kHopper = true;
#else
constexpr bool kHopper = false;
#endif

constexpr int kWarpGroup = 128;  ///< threads that issue a wgmma together

/// Dynamic shared memory of the block, aligned to the period of the swizzle (1024 bytes).
__device__ inline unsigned char* swizzled_shared();

// --- barriers in shared memory (9.7.13.15, mbarrier) ---------------------------------------------
// A phase ends when `arrivals` threads have arrived and all announced bytes have been written.
// Phases are distinguished by parity: the first has 0, and a wait for parity 1 before it ends
// returns at once.
using Barrier = std::uint64_t;
__device__ inline void barrier_init(Barrier* barrier, unsigned arrivals);
__device__ inline void barrier_arrive(Barrier* barrier);
/// Arrives, and announces bytes that the copy engine will write.
__device__ inline void barrier_arrive_expecting(Barrier* barrier, unsigned bytes);
/// Waits until the phase of this parity has ended.
__device__ inline void barrier_wait(Barrier* barrier, unsigned parity);
/// Makes this thread's writes to shared memory, barriers included, visible to the copy engine and
/// to wgmma (9.7.13.4, fence.proxy.async).
__device__ inline void fence_async_proxy();
/// Synchronises `threads` threads of the block, whole warps, on barrier `id` (1..15) (9.7.13.1,
/// bar.sync).
__device__ inline void named_barrier(unsigned id, unsigned threads);

// --- copies by the engine (9.7.9.27.1.2, cp.async.bulk.tensor) ---------------------------------
/// Called by one thread: copies the box of `map` at (column, head, row, sample) to shared memory
/// aligned to 128 bytes, with zeros for elements outside of the tensor. All its bytes, zeros
/// included, count on `barrier`.
__device__ inline void load_box(void* shared, const CUtensorMap* map, int column, int head, int row,
                                int sample, Barrier* barrier);

// --- registers (9.7.19.5, setmaxnreg), all threads of a warp group -----------------------------
template <int kRegisters>
__device__ inline void give_registers();
template <int kRegisters>
__device__ inline void take_registers();

// --- products of a warp group (9.7.15, wgmma), all 128 threads -----------------------------------
/// Descriptor of a matrix in shared memory (9.7.15.5.1.2.2) with 128-byte swizzle. `slab`: bytes
/// between groups of 64 columns, used if the columns are not the summed dimension. The stride of
/// eight rows is 1024 bytes.
__device__ inline std::uint64_t matrix_descriptor(const void* shared, unsigned slab);
/// Required before the first product after registers of an operand or of sums were written
/// (9.7.15.7.1).
template <class... Sums>
__device__ inline void wgmma_fence(Sums&... sums);
/// Groups the products issued since the last commit (9.7.15.7.2).
__device__ inline void wgmma_commit();
/// Waits until at most kPending groups are in flight; `sums` are those that are complete then
/// (9.7.15.7.3).
template <int kPending, class... Sums>
__device__ inline void wgmma_wait(Sums&... sums);
/// sums [64 x 8 kN] = A [64 x 16] B [16 x 8 kN], added to them if `accumulate`. Warp w of the group
/// has the rows from 16 w on, distributed over its lanes as by mma_16x8x16. A has k along its rows
/// of 128 bytes; B either has the same layout, a row per column of the product (kRowsOfB false), or
/// has rows of k.
template <class T, bool kRowsOfB, int kN>
__device__ inline void wgmma(float (&sums)[kN][4], std::uint64_t a, std::uint64_t b,
                             bool accumulate);
/// The same with A in registers, in the layout of mma_16x8x16; always added.
template <class T, bool kRowsOfB, int kN>
__device__ inline void wgmma(float (&sums)[kN][4], const std::uint32_t (&a)[4], std::uint64_t b);

#if defined(CHOIR_HOST_CUDA)

inline unsigned char* swizzled_shared() {
  return static_cast<unsigned char*>(host_cuda::dynamic_shared());
}
inline void barrier_init(Barrier* barrier, unsigned arrivals) {
  host_cuda::hopper::init(barrier, arrivals);
  *barrier = arrivals;
}
/// Reads the value that barrier_init() wrote, so that a missing synchronisation is detected as a
/// race.
inline void see(const Barrier* barrier) {
  [[maybe_unused]] const Barrier word = *const_cast<const volatile Barrier*>(barrier);
}
inline void barrier_arrive(Barrier* barrier) {
  see(barrier);
  host_cuda::hopper::arrive(barrier, 0);
}
inline void barrier_arrive_expecting(Barrier* barrier, unsigned bytes) {
  see(barrier);
  host_cuda::hopper::arrive(barrier, bytes);
}
inline void barrier_wait(Barrier* barrier, unsigned parity) {
  see(barrier);
  host_cuda::hopper::wait(barrier, parity, host_cuda::Where::current());
}
inline void fence_async_proxy() {
  host_cuda::hopper::fence_proxy();
}
inline void named_barrier(unsigned id, unsigned threads) {
  host_cuda::hopper::named_barrier(id, threads, host_cuda::Where::current());
}
inline void load_box(void* shared, const CUtensorMap* map, int column, int head, int row,
                     int sample, Barrier* barrier) {
  host_cuda::hopper::load_box(shared, *map, {column, head, row, sample}, barrier);
}
template <int kRegisters>
inline void give_registers() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
}
template <int kRegisters>
inline void take_registers() {
  give_registers<kRegisters>();
}
inline std::uint64_t matrix_descriptor(const void* shared, unsigned slab) {
  return host_cuda::hopper::encode(host_cuda::hopper::shared_address(shared), slab, 1024, 1);
}
template <class... Sums>
inline void wgmma_fence(Sums&...) {
  host_cuda::hopper::fence_products();
}
inline void wgmma_commit() {
  host_cuda::hopper::commit_products();
}
template <int kPending, class... Sums>
inline void wgmma_wait(Sums&...) {
  host_cuda::hopper::wait_for_products(kPending, host_cuda::Where::current());
}
template <class T, bool kRowsOfB, int kN>
inline void wgmma(float (&sums)[kN][4], std::uint64_t a, std::uint64_t b, bool accumulate) {
  host_cuda::hopper::issue(
      {8 * kN, DTypeOf<T>::value == DType::bf16, kRowsOfB, true, a, b, accumulate}, nullptr,
      &sums[0][0]);
}
template <class T, bool kRowsOfB, int kN>
inline void wgmma(float (&sums)[kN][4], const std::uint32_t (&a)[4], std::uint64_t b) {
  host_cuda::hopper::issue({8 * kN, DTypeOf<T>::value == DType::bf16, kRowsOfB, false, 0, b, true},
                           a, &sums[0][0]);
}

#else

__device__ inline unsigned char* swizzled_shared() {
  extern __shared__ __align__(1024) unsigned char choir_swizzled_shared[];
  return choir_swizzled_shared;
}

__device__ inline void barrier_init(Barrier* barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}

__device__ inline void barrier_arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(shared_address(barrier))
               : "memory");
}

__device__ inline void barrier_arrive_expecting(Barrier* barrier, unsigned bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

__device__ inline void barrier_wait(Barrier* barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred ended;\nAGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
      "@ended bra ENDED;\nbra AGAIN;\nENDED:\n}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

__device__ inline void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

__device__ inline void named_barrier(unsigned id, unsigned threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

__device__ inline void load_box(void* shared, const CUtensorMap* map, int column, int head, int row,
                                int sample, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5, %6}], [%2];\n" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(head), "r"(row), "r"(sample)
      : "memory");
}

template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

__device__ inline std::uint64_t matrix_descriptor(const void* shared, unsigned slab) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62, kEightRows = 1024 >> 4;
  return (shared_address(shared) & 0x3ffffu) >> 4 | std::uint64_t{(slab & 0x3ffffu) >> 4} << 16 |
         kEightRows << 32 | kSwizzle128;
}

/// Keeps the compiler from moving accesses to these registers across this point.
template <int kN>
__device__ inline void hold(float (&sums)[kN][4]) {
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sums[n][i])::"memory");
}

template <class... Sums>
__device__ inline void wgmma_fence(Sums&... sums) {
  (hold(sums), ...);
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}

__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

template <int kPending, class... Sums>
__device__ inline void wgmma_wait(Sums&... sums) {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
  (hold(sums), ...);
}

#define CHOIR_4(n) "+f"(sums[n][0]), "+f"(sums[n][1]), "+f"(sums[n][2]), "+f"(sums[n][3])
#define CHOIR_32(n)                                                                           \
  CHOIR_4(n), CHOIR_4(n + 1), CHOIR_4(n + 2), CHOIR_4(n + 3), CHOIR_4(n + 4), CHOIR_4(n + 5), \
      CHOIR_4(n + 6), CHOIR_4(n + 7)
#define CHOIR_LIST_32                                                                          \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define CHOIR_LIST_64                                                                            \
  CHOIR_LIST_32                                                                                  \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
  "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define CHOIR_WGMMA(shape, type, list) \
  "wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" list "}, "

/// A in shared memory: operands from 32 or 64 on are A, B, the flag to add, and the layout of B.
#define CHOIR_WGMMA_SHARED(shape, type, list, a, b, add, lies, ...)                   \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" add ", 0;\n" CHOIR_WGMMA(     \
                   shape, type, list) "%" a ", %" b ", add, 1, 1, 0, %" lies ";\n}\n" \
               : __VA_ARGS__                                                          \
               : "l"(a_), "l"(b_), "r"(add_), "n"(kRowsOfB))
/// A in registers.
#define CHOIR_WGMMA_REGISTERS(shape, type, list, a, b, c, d, other, lies, ...)            \
  asm volatile(CHOIR_WGMMA(shape, type, list) "{%" a ", %" b ", %" c ", %" d "}, %" other \
                                              ", 1, 1, 1, %" lies ";\n"                   \
               : __VA_ARGS__                                                              \
               : "r"(a_[0]), "r"(a_[1]), "r"(a_[2]), "r"(a_[3]), "l"(b_), "n"(kRowsOfB))

template <class T, bool kRowsOfB, int kN>
__device__ inline void wgmma(float (&sums)[kN][4], std::uint64_t a_, std::uint64_t b_,
                             bool accumulate) {
  static_assert(kN == 8 || kN == 16);
  const int add_ = accumulate;
  constexpr bool kBf16 = DTypeOf<T>::value == DType::bf16;
  if constexpr (kN == 8 && kBf16)
    CHOIR_WGMMA_SHARED("m64n64k16", "bf16", CHOIR_LIST_32, "32", "33", "34", "35", CHOIR_32(0));
  else if constexpr (kN == 8)
    CHOIR_WGMMA_SHARED("m64n64k16", "f16", CHOIR_LIST_32, "32", "33", "34", "35", CHOIR_32(0));
  else if constexpr (kBf16)
    CHOIR_WGMMA_SHARED("m64n128k16", "bf16", CHOIR_LIST_64, "64", "65", "66", "67", CHOIR_32(0),
                       CHOIR_32(8));
  else
    CHOIR_WGMMA_SHARED("m64n128k16", "f16", CHOIR_LIST_64, "64", "65", "66", "67", CHOIR_32(0),
                       CHOIR_32(8));
}

template <class T, bool kRowsOfB, int kN>
__device__ inline void wgmma(float (&sums)[kN][4], const std::uint32_t (&a_)[4], std::uint64_t b_) {
  static_assert(kN == 8 || kN == 16);
  constexpr bool kBf16 = DTypeOf<T>::value == DType::bf16;
  if constexpr (kN == 8 && kBf16)
    CHOIR_WGMMA_REGISTERS("m64n64k16", "bf16", CHOIR_LIST_32, "32", "33", "34", "35", "36", "37",
                          CHOIR_32(0));
  else if constexpr (kN == 8)
    CHOIR_WGMMA_REGISTERS("m64n64k16", "f16", CHOIR_LIST_32, "32", "33", "34", "35", "36", "37",
                          CHOIR_32(0));
  else if constexpr (kBf16)
    CHOIR_WGMMA_REGISTERS("m64n128k16", "bf16", CHOIR_LIST_64, "64", "65", "66", "67", "68", "69",
                          CHOIR_32(0), CHOIR_32(8));
  else
    CHOIR_WGMMA_REGISTERS("m64n128k16", "f16", CHOIR_LIST_64, "64", "65", "66", "67", "68", "69",
                          CHOIR_32(0), CHOIR_32(8));
}
#undef CHOIR_WGMMA_REGISTERS
#undef CHOIR_WGMMA_SHARED
#undef CHOIR_WGMMA
#undef CHOIR_LIST_64
#undef CHOIR_LIST_32
#undef CHOIR_32
#undef CHOIR_4

#endif

}  // namespace choir::cuda::ptx

namespace choir::cuda {

// Host: tensor maps for the copy engine of sm_90, and launches of kernels that use it.

/// Limit of a block's shared memory on sm_90.
constexpr std::size_t kHopperSharedBytes = 227 * 1024;

/// A tensor [samples, rows, heads, width] of 16-bit elements whose rows are cut into boxes of
/// `box_rows` rows (at most 256) by 64 columns; strides in elements. Throws where the driver
/// refuses them (its rules: CUDA driver API, cuTensorMapEncodeTiled).
struct TensorBoxes {
  const void* data;
  DType dtype;
  std::int64_t samples, rows, heads, width, sample_stride, row_stride;
  int box_rows;
};

/// `map` must be a variable, because the driver requires an address that is a multiple of 64: GCC
/// 12 has placed the result of a function elsewhere.
inline void set_tensor_map(CUtensorMap& map, const TensorBoxes& t) {
  // The function is looked up in the driver, because programs that must start without a driver
  // cannot be linked with it.
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                           cudaEnableDefault, &found),
          "cuTensorMapEncodeTiled");
    CHOIR_CHECK(found == cudaDriverEntryPointSuccess && function,
                "the driver has no cuTensorMapEncodeTiled (it comes with CUDA 12)");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  const auto u = [](std::int64_t n) { return static_cast<cuuint64_t>(n); };
  // The stride of a single sample is never used, but the driver checks it.
  const std::int64_t sample = t.samples > 1 ? t.sample_stride : t.rows * t.row_stride;
  const cuuint64_t dims[] = {u(t.width), u(t.heads), u(t.rows), u(t.samples)};
  const cuuint64_t strides[] = {u(2 * t.width), u(2 * t.row_stride), u(2 * sample)};
  const cuuint32_t box[] = {64, 1, static_cast<cuuint32_t>(t.box_rows), 1}, steps[] = {1, 1, 1, 1};
  const CUresult result = encode(
      &map,
      t.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      4, const_cast<void*>(t.data), dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHOIR_CHECK(result == CUDA_SUCCESS,
              "a tensor map of {} x {} x {} x {} elements, strides {} and {}: driver error {}",
              t.samples, t.rows, t.heads, t.width, t.sample_stride, t.row_stride,
              static_cast<int>(result));
}

/// True if this build has sm_90a code for the kernel. PTX of an older architecture that the driver
/// has translated also runs on sm_90, but there the kernel's body is empty.
template <class... P>
bool has_hopper_code(void (*kernel)(P...)) {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)),
        "cudaFuncGetAttributes");
  return attributes.ptxVersion >= 90;
}

/// Like launch(), for a kernel of sm_90a.
template <class... P, class... A>
void launch_hopper(const Stream& stream, const char* name, void (*kernel)(P...),
                   const LaunchShape& shape, A... arguments) {
#if defined(CHOIR_HOST_CUDA)
  host_cuda::Grid grid = host_grid(name, shape);
  grid.hopper = true;
  host_cuda::queue_kernel(
      static_cast<cudaStream_t>(stream.native()), grid, [=] { kernel(P(arguments)...); },
      may_begin_early(stream));
#else
  launch(stream, name, kernel, shape, arguments...);
#endif
}

}  // namespace choir::cuda
