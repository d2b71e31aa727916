#include "kernels/rope/rope.cuh"

#include <algorithm>
#include <vector>

#include "kernels/cuda/types.cuh"
#include "kernels/rope/rope.hpp"

namespace choir::cuda {
namespace {

/// True if heads, rows and the table split into packs; for half_split the halves too.
template <class T>
bool packs(const ops::Rope& args) {
  const bool halves = args.pairing == ops::RopePairing::half_split;
  return can_pack<T>(halves ? args.head_width / 2 : args.head_width, args.x.as<T>()) &&
         can_pack<T>(args.x.shape.back()) &&
         can_pack<float>(args.head_width / 2, args.table.as<float>());
}

template <class T, bool kPacked>
void launch_rope(const Stream& stream, const ops::Rope& args) {
  const bool halves = args.pairing == ops::RopePairing::half_split;
  const std::int64_t half = args.head_width / 2, row_width = args.x.shape.back();
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
            RopeArguments<T>{args.x.as<T>() + first * row_width,
                             args.table.as<float>() +
                                 ops::table_row(position, args.position_end) * args.head_width,
                             args.first_position_on_device, last_row, row_width,
                             static_cast<int>(args.head_width), args.inverse ? -1.0f : 1.0f,
                             static_cast<std::uint32_t>(rows * per_row), Divisor(units),
                             Divisor(args.heads), Divisor(args.tokens)});
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
  if (args.x.count() == 0 || args.heads * args.head_width == 0) return;
  with_element(args.x.dtype, [&](auto t) {
    using T = decltype(t);
    with_bool(packs<T>(args),
              [&](auto packed) { launch_rope<T, decltype(packed)::value>(stream, args); });
  });
}

}  // namespace choir::cuda
