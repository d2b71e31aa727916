#pragma once
// Rows of audio among rows of a prompt, against the reference, on any device.
#include "kernels/copy/copy.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {

/// This rank has `audio` of `all` rows of audio, from `first` on. About every other row of the
/// prompt is one of them, in no order.
struct SpliceCase {
  DType dtype;
  std::int64_t rows, all, first, audio, width;
  int skew = 0;

  HostTensor index() const {
    HostTensor list = HostTensor::integers({rows}, 7, 50);
    for (std::int64_t r = 0, a = 0; r < rows && a < all; r += 1 + (r / 3) % 2, ++a)
      list.set(r, static_cast<double>(-1 - (a * 17 + 3) % all));
    return list;
  }

  void check(Device& device) const {
    SCOPED_TRACE(fmt::format("{} {} rows of {}, audio {} from {} of {}, skew {}", name_of(dtype),
                             rows, width, audio, first, all, skew));
    const HostTensor at = index(), sound = HostTensor::normal(dtype, {audio, width}, 1);
    const HostTensor before = HostTensor::normal(dtype, {rows, width}, 2);
    HostTensor out = before, d_audio = HostTensor::filled(dtype, {audio, width}, 9);
    Mirror mirror(device);
    const Stream stream(device);
    ops::splice_forward(stream, {.index = mirror.in(at),
                                 .audio = mirror.in(sound, skew),
                                 .out = mirror.io(out, skew),
                                 .first_audio = first,
                                 .all_audio = all});
    ops::splice_backward(stream, {.index = mirror.in(at),
                                  .d_out = mirror.in(before, skew),
                                  .d_audio = mirror.io(d_audio, skew),
                                  .first_audio = first,
                                  .all_audio = all});
    mirror.fetch();
    HostTensor exact = before.to(DType::f64), d_exact(DType::f64, {audio, width});
    const HostTensor sound64 = sound.to(DType::f64), before64 = before.to(DType::f64);
    ref::splice_forward(
        {.index = at, .audio = sound64, .out = exact, .first_audio = first, .all_audio = all});
    ref::splice_backward({.index = at,
                          .d_out = before64,
                          .d_audio = d_exact,
                          .first_audio = first,
                          .all_audio = all});
    // One addition of terms below 5; backward copies.
    expect_close(out, exact, unit_roundoff(dtype), 10 * unit_roundoff(sum_dtype(dtype)), "forward");
    expect_close(d_audio, d_exact, 0, 0, "backward");
  }
};

}  // namespace choir::test
