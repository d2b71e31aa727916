#pragma once
// Elements in packs of 16 bytes (one load or store instruction moves eight halves or four floats;
// arithmetic is in floats), flat maps over them, and Access<T, kPacked>: a common form of kernels
// for whole packs and for rows that are ragged or not aligned. Also the exact divisions that such
// kernels need. Floor of a flat map: bytes read and written at memory bandwidth. Blocks of 256
// threads, several packs in flight per thread, enough blocks to fill the largest GPU several times.

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

constexpr int kElementwiseThreads = 256;

/// Number of blocks for `items` items of one thread each; a grid-stride loop handles any excess.
inline dim3 elementwise_blocks(std::int64_t items) {
  constexpr std::int64_t kMost = 8192;
  const std::int64_t wanted = blocks_for(items, kElementwiseThreads);
  return dim3(static_cast<unsigned>(wanted < 1 ? 1 : wanted > kMost ? kMost : wanted));
}

__device__ inline std::int64_t global_thread() {
  return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t global_threads() {
  return std::int64_t{gridDim.x} * blockDim.x;
}

/// out[i] = f(a[i], b[i] ...) for inputs of one type. `packed`: all are aligned to 16 bytes (at
/// least). In place is allowed.
template <class Out, class In, class F, class... Ins>
__device__ inline void map_elements(std::int64_t n, bool packed, Out* out, F f, const In* first,
                                    const Ins*... rest) {
  static_assert(sizeof(In) == sizeof(Out), "cast has its own kernel");
  constexpr int kWidth = kPack<In>;
  const std::int64_t packs = packed ? n / kWidth : 0;
  for (std::int64_t p = global_thread(); p < packs; p += global_threads()) {
    const Pack<In> a = load_pack(first + p * kWidth);
    Pack<Out> result;
    if constexpr (sizeof...(Ins) == 0) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) result.x[i] = f(a.x[i]);
    } else {
      const Pack<In> b = load_pack((rest + p * kWidth)...);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) result.x[i] = f(a.x[i], b.x[i]);
    }
    store_pack(out + p * kWidth, result);
  }
  for (std::int64_t i = packs * kWidth + global_thread(); i < n; i += global_threads())
    out[i] = from_float<Out>(f(to_float(first[i]), to_float(rest[i])...));
}

template <class T, bool kPacked>
struct Access;

template <class T>
struct Access<T, true> {
  static constexpr int kWide = kPack<T>;
  using Raw = uint4;  ///< raw bits as in memory, held by a thread until the load is complete
  __device__ static Raw read(const T* from) { return *reinterpret_cast<const uint4*>(from); }
  __device__ static void write(T* to, const Raw& raw) { ptx::store_16(to, raw); }
  __device__ static void unpack(const Raw& raw, float* x) {
    const Pack<T> pack = unpacked<T>(raw);
#pragma unroll
    for (int i = 0; i < kWide; ++i) x[i] = pack.x[i];
  }
  __device__ static Raw pack(const float* x) {
    Pack<T> pack;
#pragma unroll
    for (int i = 0; i < kWide; ++i) pack.x[i] = x[i];
    return packed(pack);
  }
  __device__ static void load(const T* from, float* x) {
    unpack(read(from), x);
  }
  __device__ static void store(T* to, const float* x) {
    write(to, pack(x));
  }
};

template <class T>
struct Access<T, false> {
  static constexpr int kWide = 1;
  using Raw = T;
  __device__ static Raw read(const T* from) { return *from; }
  __device__ static void write(T* to, const Raw& raw) { *to = raw; }
  __device__ static void unpack(const Raw& raw, float* x) { *x = to_float(raw); }
  __device__ static Raw pack(const float* x) { return from_float<T>(*x); }
  __device__ static void load(const T* from, float* x) { unpack(*from, x); }
  __device__ static void store(T* to, const float* x) { *to = pack(x); }
};

/// Loads one element, or packs of T with as many elements as a pack of another type has.
template <class T, int kWide>
__device__ inline void load_many(const T* from, float (&x)[kWide]) {
  using Wide = Access<T, kWide != 1>;
#pragma unroll
  for (int i = 0; i < kWide; i += Wide::kWide) Wide::load(from + i, x + i);
}
template <class T, int kWide>
__device__ inline void store_many(T* to, const float (&x)[kWide]) {
  using Wide = Access<T, kWide != 1>;
#pragma unroll
  for (int i = 0; i < kWide; i += Wide::kWide) Wide::store(to + i, x + i);
}

/// Loads that one thread of map_flat() has in flight: 64 bytes, so that a full multiprocessor waits
/// for 128 KiB at once, several times the amount that hides the latency of its memory.
template <int kInputs>
constexpr int kMapUnroll = kInputs == 1 ? 4 : 2;

/// Host: blocks for map_flat over n elements.
template <class T, bool kPacked, int kInputs>
dim3 map_blocks(std::int64_t n) {
  return elementwise_blocks(blocks_for(n, Access<T, kPacked>::kWide * kMapUnroll<kInputs>));
}

/// out[i] = f(in[0][i]) or f(in[0][i], in[1][i]): packs, then the remaining elements one by one;
/// all one by one unless kPacked. In place is allowed.
template <class T, bool kPacked, int kInputs, class F>
__device__ inline void map_flat(std::int64_t n, const T* const (&in)[kInputs], T* out, const F& f) {
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide, kUnroll = kMapUnroll<kInputs>;
  const auto apply = [&](const float(&x)[kInputs][kWide], int i) {
    if constexpr (kInputs == 1)
      return f(x[0][i]);
    else
      return f(x[0][i], x[1][i]);
  };
  const std::int64_t packs = n / kWide, threads = global_threads();
  for (std::int64_t first = global_thread(); first < packs; first += kUnroll * threads) {
    typename Wide::Raw raw[kUnroll][kInputs];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
#pragma unroll
      for (int k = 0; k < kInputs; ++k)
        if (first + u * threads < packs)
          raw[u][k] = Wide::read(in[k] + (first + u * threads) * kWide);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u * threads >= packs) break;
      float x[kInputs][kWide], y[kWide];
#pragma unroll
      for (int k = 0; k < kInputs; ++k) Wide::unpack(raw[u][k], x[k]);
#pragma unroll
      for (int i = 0; i < kWide; ++i) y[i] = apply(x, i);
      Wide::store(out + (first + u * threads) * kWide, y);
    }
  }
  const std::int64_t tail = packs * kWide + global_thread();
  if (tail >= n) return;
  if constexpr (kInputs == 1)
    out[tail] = from_float<T>(f(to_float(in[0][tail])));
  else
    out[tail] = from_float<T>(f(to_float(in[0][tail]), to_float(in[1][tail])));
}

/// Most items of a launch that uses 32-bit indices.
constexpr std::int64_t kMostItems = (std::int64_t{1} << 31) - 1;

/// n / d for n up to kMostItems by a multiplication. With 2^s >= d > 2^(s-1) the multiplier
/// ceil(2^(31+s) / d) fits 32 bits and is too large by less than d / 2^(31+s) <= 2^-31, which no n
/// makes visible (Granlund & Montgomery 1994). Any d >= 1: beyond 2^31 all quotients are 0.
struct Divisor {
  std::uint32_t divisor = 1, multiplier = 1u << 31, shift = 31;

  explicit Divisor(std::int64_t d)
      : divisor(static_cast<std::uint32_t>(d > kMostItems ? kMostItems + 1 : d)) {
    std::uint32_t s = 0;
    while ((std::uint64_t{1} << s) < divisor) ++s;
    shift = 31 + s;
    multiplier = static_cast<std::uint32_t>(((std::uint64_t{1} << shift) + divisor - 1) / divisor);
  }
  __host__ __device__ std::uint32_t quotient(std::uint32_t n) const {
    return static_cast<std::uint32_t>(std::uint64_t{n} * multiplier >> shift);
  }
  __host__ __device__ std::uint32_t remainder(std::uint32_t n) const {
    return n - quotient(n) * divisor;
  }
};

/// Host: f(first_row, rows) for parts of all rows with at most `most_items` items each. A part
/// consists of whole groups of `group` rows if one group fits, else it lies inside one group.
template <class F>
void for_row_parts(std::int64_t rows, std::int64_t items_per_row, std::int64_t group, const F& f,
                   std::int64_t most_items = kMostItems) {
  const std::int64_t most = most_items / items_per_row;
  const std::int64_t whole = most < group ? most : most - most % group;
  for (std::int64_t r = 0; r < rows;) {
    std::int64_t n = rows - r < whole ? rows - r : whole;
    if (whole < group && n > group - r % group) n = group - r % group;
    f(r, n);
    r += n;
  }
}

/// Host: f(std::bool_constant) with a condition as template argument.
template <class F>
void with_bool(bool condition, const F& f) {
  condition ? f(std::true_type{}) : f(std::false_type{});
}

}  // namespace choir::cuda
