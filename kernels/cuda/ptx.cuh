#pragma once
// Every instruction that has no name in CUDA C++, each with a twin for the host that behaves like
// the hardware in the relevant respects: cp.async delivers late, matrix operations involve the
// whole warp. Source of the semantics: PTX ISA 9.0 (cp.async, st, ldmatrix, mma, cvt, ex2). sm_80
// and newer.
#include "choir/core/dtype.hpp"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda::ptx {

// --- asynchronous copies from global to shared memory -------------------------------------------
/// Copies 16 bytes; only the first `valid` (0..16) are read, the rest becomes zero. Both addresses
/// are aligned to 16.
__device__ inline void cp_async_16(void* shared, const void* global, int valid = 16);
/// Groups the copies that this thread issued since the last commit.
__device__ inline void cp_async_commit();
/// Waits until at most `kPending` groups of this thread are in flight. Other threads see the data
/// after the next barrier.
template <int kPending>
__device__ inline void cp_async_wait();

// --- stores ------------------------------------------------------------------------------------
/// Stores 16 bytes in one instruction; `global` is aligned to 16. The compiler treats an assignment
/// to a uint4 as four members, and emits four stores of 4 bytes if it cannot prove that they belong
/// together.
__device__ inline void store_16(void* global, const uint4& value);

// --- matrix fragments (16-bit elements), all 32 lanes together -----------------------------------
/// Loads four 8 x 8 matrices; lane 8 i + r gives the address of row r of matrix i (16 bytes,
/// aligned). Lane l receives from each matrix the element (l / 4, 2 (l % 4)) and its right
/// neighbour.
__device__ inline void ldmatrix_x4(std::uint32_t (&out)[4], const void* row);
/// The same with every matrix transposed during the load.
__device__ inline void ldmatrix_x4_trans(std::uint32_t (&out)[4], const void* row);
/// d [16 x 8] += a [16 x 16] b [16 x 8], sums in f32. With g = lane / 4, t = lane % 4 a pair holds
/// columns (or, in b, rows) 2t, 2t + 1: a = rows g, g+8, g, g+8 of column pairs 2t, 2t, 2t+8, 2t+8;
/// b = row pairs 2t, 2t+8 of column g; d = (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1).
template <class T>
__device__ inline void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4],
                                   const std::uint32_t (&b)[2]);

// --- conversions and functions -------------------------------------------------------------------
/// Rounds two elements to T in one register, `low` in the lower half; round to nearest even.
template <class T>
__device__ inline std::uint32_t pack(float low, float high);
template <class T>
__device__ inline float unpack_low(std::uint32_t pair);
template <class T>
__device__ inline float unpack_high(std::uint32_t pair);
/// 2^x, relative error 2^-22.
__device__ inline float exp2_approx(float x);

#if defined(CHOIR_HOST_CUDA)

inline void cp_async_16(void* shared, const void* global, int valid) {
  auto* to = static_cast<volatile std::uint32_t*>(shared);
  for (int i = 0; i < 4; ++i) to[i] = 0xffffffffu;  // not arrived yet
  host_cuda::queue_copy({shared, global, 16, static_cast<unsigned>(valid)});
}

inline void cp_async_commit() {
  host_cuda::commit_copies();
}

template <int kPending>
inline void cp_async_wait() {
  host_cuda::QueuedCopy copy;
  while (host_cuda::next_copy(kPending, copy)) {
    auto* to = static_cast<unsigned char*>(copy.to);
    const auto* from = static_cast<const unsigned char*>(copy.from);
    for (unsigned i = 0; i < copy.bytes; ++i) to[i] = i < copy.valid ? from[i] : 0;
  }
}

inline void store_16(void* global, const uint4& value) {
  *static_cast<uint4*>(global) = value;
}

namespace host {

inline void load_matrices(std::uint32_t (&out)[4], const void* row, bool transpose,
                          host_cuda::Where where) {
  const std::byte* all = host_cuda::exchange(kAllLanes, &row, sizeof row, where);
  const auto address = [&](unsigned matrix, unsigned r) {
    const std::uint16_t* elements = nullptr;
    std::memcpy(&elements, all + (8 * matrix + r) * host_cuda::kExchangeBytes, sizeof elements);
    return elements;
  };
  if (host_cuda::lane() == 0) {
    const void* rows[kWarp];
    for (unsigned l = 0; l < kWarp; ++l) rows[l] = address(l / 8, l % 8);
    host_cuda::load_matrices(rows);
  }
  const unsigned g = host_cuda::lane() / 4, t = host_cuda::lane() % 4;
  for (unsigned m = 0; m < 4; ++m) {
    const std::uint32_t low = transpose ? address(m, 2 * t)[g] : address(m, g)[2 * t];
    const std::uint32_t high = transpose ? address(m, 2 * t + 1)[g] : address(m, g)[2 * t + 1];
    out[m] = low | high << 16;
  }
}

struct MmaInput {
  std::uint32_t a[4], b[2];
  float d[4];
};

template <class T>
void multiply(const std::byte* inputs, std::byte* outputs) {
  float a[16][16], b[16][8];
  for (unsigned lane = 0; lane < 32; ++lane) {
    MmaInput in;
    std::memcpy(&in, inputs + lane * host_cuda::kExchangeBytes, sizeof in);
    const unsigned g = lane / 4, t = 2 * (lane % 4);
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = g + i % 2 * 8, column = t + i / 2 * 8;
      a[row][column] = unpack_low<T>(in.a[i]), a[row][column + 1] = unpack_high<T>(in.a[i]);
    }
    for (unsigned i = 0; i < 2; ++i)
      b[t + 8 * i][g] = unpack_low<T>(in.b[i]), b[t + 8 * i + 1][g] = unpack_high<T>(in.b[i]);
  }
  float product[16][8] = {};
  for (unsigned row = 0; row < 16; ++row)
    for (unsigned k = 0; k < 16; ++k)
      for (unsigned column = 0; column < 8; ++column)
        product[row][column] += a[row][k] * b[k][column];
  for (unsigned lane = 0; lane < 32; ++lane) {
    MmaInput in;
    std::memcpy(&in, inputs + lane * host_cuda::kExchangeBytes, sizeof in);
    const unsigned g = lane / 4, t = 2 * (lane % 4);
    for (unsigned i = 0; i < 4; ++i) in.d[i] += product[g + i / 2 * 8][t + i % 2];
    std::memcpy(outputs + lane * host_cuda::kExchangeBytes, in.d, sizeof in.d);
  }
}

}  // namespace host

inline void ldmatrix_x4(std::uint32_t (&out)[4], const void* row) {
  host::load_matrices(out, row, false, host_cuda::Where::current());
}

inline void ldmatrix_x4_trans(std::uint32_t (&out)[4], const void* row) {
  host::load_matrices(out, row, true, host_cuda::Where::current());
}

template <class T>
inline void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  host::MmaInput in;
  std::memcpy(in.a, a, sizeof a), std::memcpy(in.b, b, sizeof b), std::memcpy(in.d, d, sizeof d);
  const std::byte* out = host_cuda::combine(kAllLanes, &in, sizeof in, &host::multiply<T>,
                                            host_cuda::Where::current());
  std::memcpy(d, out, sizeof d);
}

template <class T>
inline std::uint32_t pack(float low, float high) {
  return T(low).bits | static_cast<std::uint32_t>(T(high).bits) << 16;
}

template <class T>
inline float unpack_low(std::uint32_t pair) {
  T value;
  value.bits = static_cast<std::uint16_t>(pair);
  return static_cast<float>(value);
}

template <class T>
inline float unpack_high(std::uint32_t pair) {
  return unpack_low<T>(pair >> 16);
}

inline float exp2_approx(float x) {
  return std::exp2(x);
}

#else

__device__ inline std::uint32_t shared_address(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

__device__ inline void cp_async_16(void* shared, const void* global, int valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(shared)),
               "l"(global), "r"(valid)
               : "memory");
}

__device__ inline void cp_async_commit() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}

template <int kPending>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

__device__ inline void store_16(void* global, const uint4& value) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"l"(__cvta_generic_to_global(global)),
               "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ inline void ldmatrix_x4(std::uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}

__device__ inline void ldmatrix_x4_trans(std::uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}

#define CHOIR_MMA(type)                                                                 \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                   \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                         \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

template <class T>
__device__ inline void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4],
                                   const std::uint32_t (&b)[2]) {
  if constexpr (DTypeOf<T>::value == DType::bf16)
    CHOIR_MMA("bf16");
  else
    CHOIR_MMA("f16");
}
#undef CHOIR_MMA

template <class T>
__device__ inline std::uint32_t pack(float low, float high) {
  std::uint32_t pair;
  if constexpr (DTypeOf<T>::value == DType::bf16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

template <class T>
__device__ inline float unpack_low(std::uint32_t pair) {
  if constexpr (DTypeOf<T>::value == DType::bf16) {
    return __uint_as_float(pair << 16);
  } else {
    float value;
    asm("cvt.f32.f16 %0, %1;\n" : "=f"(value) : "h"(static_cast<std::uint16_t>(pair)));
    return value;
  }
}

template <class T>
__device__ inline float unpack_high(std::uint32_t pair) {
  if constexpr (DTypeOf<T>::value == DType::bf16)
    return __uint_as_float(pair & 0xffff0000u);
  else
    return unpack_low<T>(pair >> 16);
}

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

#endif

}  // namespace choir::cuda::ptx
