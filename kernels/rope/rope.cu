// Rotary positions in place, x [rows, row_width] with table [positions, R] = cos | sin in f32; the
// rotation is in kernels/rope/rope.hpp. Floor: q and k read and written once, 4 bytes per 16-bit
// element; the table (8 bytes per pair) is shared by the heads of a row and stays in cache; 3 FLOP.
// A thread rotates one pack of first features with its pack of second features (half_split), or the
// pairs inside one pack (interleaved); neighbouring threads walk through the heads of one row.

#include "kernels/rope/rope.hpp"

#include <algorithm>
#include <vector>

#include "kernels/cuda/access.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

template <class T>
struct RopeArguments {
  T* x;                         ///< first row
  const float* table;           ///< row of first_position
  const std::int32_t* further;  ///< rows to skip from there, or nullptr
  std::uint32_t last_row;       ///< last row of the table, counted from there; padding reads it
  std::int64_t row_width;       ///< elements between rows
  int width;                    ///< D
  int half;                     ///< R / 2
  float sign;                   ///< -1: rotate back
  std::uint32_t items;          ///< rows * heads * units
  Divisor units;                ///< threads per head
  Divisor heads, tokens;        ///< heads rotated per row; positions repeat after `tokens` rows
};

/// The features of one thread.
template <class T>
struct RopePlace {
  T* head;
  const float *cosines, *sines;
  int unit;
  __device__ RopePlace(const RopeArguments<T>& a, const float* table, std::uint32_t item) {
    const std::uint32_t in_order = a.units.quotient(item), row = a.heads.quotient(in_order);
    unit = static_cast<int>(a.units.remainder(item));
    head = a.x + row * a.row_width + std::int64_t{a.heads.remainder(in_order)} * a.width;
    const std::uint32_t position = a.tokens.remainder(row);
    cosines = table + std::int64_t{position < a.last_row ? position : a.last_row} * (2 * a.half);
    sines = cosines + a.half;
  }
};

/// The row of the table for the first position.
template <class T>
__device__ inline const float* first_angles(const RopeArguments<T>& a) {
  return a.further == nullptr ? a.table : a.table + std::int64_t{*a.further} * (2 * a.half);
}

template <int kWide>
__device__ inline void load_angles(const float* from, float* to) {
  if constexpr (kWide % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kWide; i += 4) Access<float, true>::load(from + i, to + i);
  } else {
#pragma unroll
    for (int i = 0; i < kWide; ++i) to[i] = from[i];
  }
}

template <class T, bool kPacked>
__global__ void __launch_bounds__(kElementwiseThreads) rope_halves_kernel(RopeArguments<T> a) {
  using Wide = Access<T, kPacked>;
  constexpr int kWide = Wide::kWide;
  let_next_begin();
  wait_for_earlier();
  const float* const table = first_angles(a);
  for (std::int64_t item = global_thread(); item < a.items; item += global_threads()) {
    const RopePlace<T> at(a, table, static_cast<std::uint32_t>(item));
    const int i0 = at.unit * kWide;
    T *const first = at.head + i0, *const second = first + a.half;
    const typename Wide::Raw raw_first = Wide::read(first), raw_second = Wide::read(second);
    float c[kWide], s[kWide], x[kWide], y[kWide];
    load_angles<kWide>(at.cosines + i0, c), load_angles<kWide>(at.sines + i0, s);
    Wide::unpack(raw_first, x), Wide::unpack(raw_second, y);
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      const float turned = x[i] * c[i] - y[i] * (a.sign * s[i]);
      y[i] = y[i] * c[i] + x[i] * (a.sign * s[i]);
      x[i] = turned;
    }
    Wide::store(first, x), Wide::store(second, y);
  }
}

/// Pairs are adjacent: a pack holds kWide / 2 of them; without packs, two elements.
template <class T, bool kPacked>
__global__ void __launch_bounds__(kElementwiseThreads) rope_neighbours_kernel(RopeArguments<T> a) {
  using Wide = Access<T, kPacked>;
  constexpr int kPairs = kPacked ? Wide::kWide / 2 : 1, kParts = 2 * kPairs / Wide::kWide;
  let_next_begin();
  wait_for_earlier();
  const float* const table = first_angles(a);
  for (std::int64_t item = global_thread(); item < a.items; item += global_threads()) {
    const RopePlace<T> at(a, table, static_cast<std::uint32_t>(item));
    const int i0 = at.unit * kPairs;
    T* const from = at.head + 2 * i0;
    float c[kPairs], s[kPairs], x[2 * kPairs];
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      Wide::load(from + part * Wide::kWide, x + part * Wide::kWide);
    load_angles<kPairs>(at.cosines + i0, c), load_angles<kPairs>(at.sines + i0, s);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const float turned = x[2 * i] * c[i] - x[2 * i + 1] * (a.sign * s[i]);
      x[2 * i + 1] = x[2 * i + 1] * c[i] + x[2 * i] * (a.sign * s[i]);
      x[2 * i] = turned;
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      Wide::store(from + part * Wide::kWide, x + part * Wide::kWide);
  }
}

namespace {

/// True if heads, rows and the table split into packs; for half_split the halves too.
template <class T>
bool packs(const ops::Rope& args) {
  const bool halves = args.pairing == ops::RopePairing::half_split;
  const std::int64_t width = args.rotated();
  return can_pack<T>(halves ? width / 2 : width, args.x.as<T>()) && can_pack<T>(args.head_width) &&
         can_pack<T>(args.x.shape.back()) && can_pack<float>(width / 2, args.table.as<float>());
}

template <class T, bool kPacked>
void launch_rope(const Stream& stream, const ops::Rope& args) {
  const bool halves = args.pairing == ops::RopePairing::half_split;
  const std::int64_t half = args.rotated() / 2, row_width = args.x.shape.back();
  constexpr int kWide = Access<T, kPacked>::kWide;
  const std::int64_t units = halves ? half / kWide : half / (kPacked ? kWide / 2 : 1);
  const std::int64_t per_row = units * args.heads;
  for_row_parts(
      args.x.shape.rows(), per_row, args.tokens, [&](std::int64_t first, std::int64_t rows) {
        const std::int64_t position = args.first_position + first % args.tokens;
        const auto last_row = static_cast<std::uint32_t>(
            std::max<std::int64_t>(0, std::min(args.position_end - 1 - position, kMostItems)));
        launch_small_early(
            stream, "rope",
            halves ? rope_halves_kernel<T, kPacked> : rope_neighbours_kernel<T, kPacked>,
            {elementwise_blocks(rows * per_row), kElementwiseThreads},
            RopeArguments<T>{
                args.x.as<T>() + first * row_width,
                args.table.as<float>() + ops::table_row(position, args.position_end) * (2 * half),
                args.first_position_on_device, last_row, row_width,
                static_cast<int>(args.head_width), static_cast<int>(half),
                args.inverse ? -1.0f : 1.0f, static_cast<std::uint32_t>(rows * per_row),
                Divisor(units), Divisor(args.heads), Divisor(args.tokens)});
      });
}

}  // namespace

// Computed on the host and copied: once per run, or one row per position of an endless stream, with
// the same bits as on the CPU. The host waits for the copy, so this cannot be part of a step.
void rope_table(const Stream& stream, double theta, const ops::RopeScaling& scaling,
                const TensorView& table, std::int64_t first_position) {
  with_element(table.dtype, [&](auto) {
    std::vector<float> host(static_cast<std::size_t>(table.count()));
    cpu::rope_table(theta, scaling, {host.data(), DType::f32, table.shape}, first_position);
    stream.copy_from_host(table.data, host.data(), table.bytes());
    stream.synchronize();
  });
}

void rope(const Stream& stream, const ops::Rope& args) {
  if (args.x.count() == 0 || args.heads * args.rotated() == 0) return;
  with_element(args.x.dtype, [&](auto t) {
    using T = decltype(t);
    with_bool(packs<T>(args),
              [&](auto packed) { launch_rope<T, decltype(packed)::value>(stream, args); });
  });
}

}  // namespace choir::cuda
