#pragma once
// Rotary positions against the reference, on any device.
#include "kernels/rope/rope.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {

/// Two sequences of five tokens at positions 3 to 7.
inline ops::Rope rope_arguments(const TensorView& x, const TensorView& table, std::int64_t heads,
                                std::int64_t width, ops::RopePairing pairing) {
  ops::Rope r;
  r.pairing = pairing, r.x = x, r.heads = heads, r.head_width = width, r.tokens = 5,
  r.first_position = 3;
  r.table = table;
  return r;
}

/// Runs forward and backward; the `others` features of a row, and those of a head beyond `rotated`
/// (0: none), must not change. The table ends at `end`; `on_device` positions are given in device
/// memory only.
inline void check_rope(Device& device, DType dtype, ops::RopePairing pairing, std::int64_t width,
                       std::int64_t others, int skew = 0, std::int64_t end = ops::kNoPositionEnd,
                       std::int64_t on_device = 0, std::int64_t rotated = 0) {
  if (rotated == 0) rotated = width;
  SCOPED_TRACE(fmt::format("{} pairing {} R {} of D {} and {} others, skew {}", name_of(dtype),
                           static_cast<int>(pairing), rotated, width, others, skew) +
               (end == ops::kNoPositionEnd ? "" : fmt::format(" end {}", end)));
  const Stream stream(device);
  const std::int64_t heads = 3, row_width = heads * width + others;
  const HostTensor before = HostTensor::normal(dtype, {10, row_width}, 1);
  HostTensor x = before, exact = x.to(DType::f64),
             table(sum_dtype(dtype), {std::min<std::int64_t>(8, end), rotated});
  for (const bool inverse : {false, true}) {
    Mirror mirror(device);
    const TensorView angles = mirror.io(table);
    ops::rope_table(stream, 10000.0, angles);
    ops::Rope args = rope_arguments(mirror.io(x, skew), angles, heads, width, pairing);
    args.inverse = inverse, args.position_end = end;
    const HostTensor further = HostTensor::filled(DType::i32, {1}, static_cast<double>(on_device));
    if (on_device > 0) {
      args.first_position -= on_device;
      args.first_position_on_device = mirror.in(further).as<std::int32_t>();
    }
    ops::rope(stream, args);
    mirror.fetch();
    args = rope_arguments(exact, table, heads, width, pairing);
    args.inverse = inverse, args.position_end = end;
    ref::rope(args, 10000.0);
    // Two products and a sum of terms below |a| + |b|, with table entries that are rounded once: 4
    // roundings.
    const double u = unit_roundoff(sum_dtype(dtype));
    expect_close(x, exact, unit_roundoff(dtype), 4 * u * 8, inverse ? "back" : "rope");
    exact = x.to(DType::f64);
  }
  for (std::int64_t r = 0; r < 10; ++r)
    for (std::int64_t c = 0; c < row_width; ++c) {
      if (c < heads * width && c % width < rotated) continue;
      ASSERT_EQ(x[r * row_width + c], before[r * row_width + c]) << r << " " << c;
    }
}

}  // namespace choir::test
