#pragma once
// The gated linear unit against its reference, on any device.
#include "kernels/activation/activation.hpp"
#include "test/support/frames_case.hpp"

namespace choir::test {

struct GluCase {
  DType dtype;
  std::int64_t batch, frames, width;
  bool masked = true;
  int skew = 0;
  /// Relative error of the device's logistic function, beyond that of single precision.
  double approximation = 0;

  void check(Device& device) const {
    SCOPED_TRACE(fmt::format("{} [{}, {}, {}]{} skew {}", name_of(dtype), batch, frames, width,
                             masked ? " masked" : "", skew));
    const Stream stream(device);
    const Shape in_shape{batch * frames, 2 * width}, shape{batch * frames, width};
    HostTensor x = HostTensor::normal(dtype, in_shape, 1, 3);
    HostTensor d_y = HostTensor::normal(dtype, shape, 2), y(dtype, shape), d_x(dtype, in_shape);
    HostTensor plain = HostTensor::normal(dtype, shape, 3), lengths;
    const HostTensor unmasked = plain;
    if (masked) {
      lengths = mixed_lengths(batch, frames);
      for (HostTensor* t : {&x, &d_y, &plain}) poison_padding(*t, lengths, frames);
    }
    Mirror mirror(device);
    const std::int32_t* on_device = mirrored_lengths(mirror, lengths);
    const TensorView in = mirror.in(x, skew);
    ops::glu_forward(stream, in, mirror.io(y, skew), on_device, frames);
    ops::glu_backward(stream, in, mirror.in(d_y, skew), mirror.io(d_x, skew), on_device, frames);
    ops::mask_frames(stream, mirror.io(plain, skew), on_device, frames);
    mirror.fetch();
    HostTensor exact_y(DType::f64, shape), exact_d_x(DType::f64, in_shape);
    const std::int32_t* here = host_lengths(lengths);
    ref::glu_forward(x.to(DType::f64), exact_y, here, frames);
    ref::glu_backward(x.to(DType::f64), d_y.to(DType::f64), exact_d_x, here, frames);
    // The argument of the exponential is rounded to half an ulp of itself, at most 15 u.
    const double u = unit_roundoff(sum_dtype(dtype));
    const double relative = 2 * unit_roundoff(dtype) + 24 * u + 2 * approximation;
    const double tiny = underflow_roundoff(dtype);
    expect_close(y, exact_y, relative, tiny, "y");
    expect_close(d_x, exact_d_x, relative, tiny, "d_x");
    for (std::int64_t i = 0; i < plain.count(); ++i) {
      const bool counts = i / width % frames < frames_of(here, i / width / frames, frames);
      EXPECT_EQ(plain[i], counts ? unmasked[i] : 0.0) << i;
      if (!counts) {
        EXPECT_EQ(y[i], 0) << i;
      }
    }
  }
};

}  // namespace choir::test
