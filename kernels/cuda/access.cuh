#pragma once
// A common form of kernels for whole packs of 16 bytes and for rows that are ragged or not aligned:
// the body asks Access<T, kPacked> for kWide neighbouring elements, eight, four or one. Also the
// flat loops and exact divisions that such kernels need.
#include "kernels/cuda/elementwise.cuh"

namespace choir::cuda {

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
