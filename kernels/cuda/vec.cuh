#pragma once
// Elements in packs of 16 bytes: one load or store instruction moves eight halves or four floats;
// arithmetic is in floats.
#include <cstring>

#include "kernels/cuda/ptx.cuh"

namespace choir::cuda {

/// Elements of T in 16 bytes.
template <class T>
constexpr int kPack = 16 / static_cast<int>(sizeof(T));

template <class T>
__device__ inline float to_float(T x) {
  if constexpr (sizeof(T) == 2)
    return ptx::unpack_low<T>(x.bits);
  else
    return static_cast<float>(x);
}

template <class T>
__device__ inline T from_float(float x) {
  if constexpr (sizeof(T) == 2) {
    T result;
    result.bits = static_cast<std::uint16_t>(ptx::pack<T>(x, 0.0f));
    return result;
  } else {
    return static_cast<T>(x);
  }
}

/// kPack<T> elements as floats.
template <class T>
struct Pack {
  float x[kPack<T>];
};

template <class T>
__device__ inline Pack<T> unpacked(const uint4& raw) {
  const std::uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
  Pack<T> pack;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 2) {
      pack.x[2 * i] = ptx::unpack_low<T>(word[i]);
      pack.x[2 * i + 1] = ptx::unpack_high<T>(word[i]);
    } else {
      pack.x[i] = __uint_as_float(word[i]);
    }
  }
  return pack;
}

template <class T>
__device__ inline uint4 packed(const Pack<T>& pack) {
  std::uint32_t word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 2)
      word[i] = ptx::pack<T>(pack.x[2 * i], pack.x[2 * i + 1]);
    else
      word[i] = __float_as_uint(pack.x[i]);
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}

/// Loads a pack from `from`, aligned to 16 bytes. The _streaming variants tell the cache that the
/// data are not used again.
template <class T>
__device__ inline Pack<T> load_pack(const T* from) {
  return unpacked<T>(*reinterpret_cast<const uint4*>(from));
}
template <class T>
__device__ inline Pack<T> load_pack_streaming(const T* from) {
  return unpacked<T>(__ldcs(reinterpret_cast<const uint4*>(from)));
}
template <class T>
__device__ inline void store_pack(T* to, const Pack<T>& pack) {
  ptx::store_16(to, packed(pack));
}
template <class T>
__device__ inline void store_pack_streaming(T* to, const Pack<T>& pack) {
  __stcs(reinterpret_cast<uint4*>(to), packed(pack));
}

/// Host: true if every pointer is aligned to 16 bytes and `elements` is a whole number of packs of
/// T.
template <class T, class... P>
bool can_pack(std::int64_t elements, const P*... pointers) {
  return elements % kPack<T> == 0 &&
         ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace choir::cuda
