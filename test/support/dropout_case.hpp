#pragma once
// Dropout against the reference, on any device.
#include "kernels/dropout/dropout.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {

inline ops::Dropout dropout_arguments(const TensorView& in, const TensorView& out,
                                      double probability) {
  ops::Dropout d;
  d.in = in, d.out = out, d.probability = probability, d.key = philox_key(7, "layer 3");
  d.first_sample = (std::int64_t{1} << 33) + 5, d.tokens = 4, d.first_position = 2;
  return d;
}

/// Returns the result of the device.
inline HostTensor check_dropout(Device& device, DType dtype, std::int64_t width, double probability,
                                int skew = 0) {
  SCOPED_TRACE(fmt::format("{} C {} p {} skew {}", name_of(dtype), width, probability, skew));
  const Stream stream(device);
  const HostTensor in = HostTensor::normal(dtype, {12, width}, 1), in64 = in.to(DType::f64);
  HostTensor out(dtype, {12, width}), inside = in, exact(DType::f64, {12, width});
  Mirror mirror(device);
  ops::dropout(stream, dropout_arguments(mirror.in(in, skew), mirror.io(out, skew), probability));
  const TensorView in_place = mirror.io(inside, skew);
  ops::dropout(stream, dropout_arguments(in_place, in_place, probability));
  mirror.fetch();
  ref::dropout(dropout_arguments(in64, exact, probability));
  // The factor and the product are rounded once each.
  expect_close(out, exact, unit_roundoff(dtype) + 2 * unit_roundoff(sum_dtype(dtype)),
               underflow_roundoff(dtype), "dropout");
  EXPECT_TRUE(inside.same_bits(out)) << "in place";
  return out;
}

}  // namespace choir::test
