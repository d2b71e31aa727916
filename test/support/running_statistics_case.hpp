#pragma once
// Running statistics against their reference, on any device.
#include "kernels/norm/batch_norm.hpp"
#include "test/support/frames_case.hpp"

namespace choir::test {

struct RunningCase {
  DType dtype;
  std::int64_t micro_batches, width;
  bool controlled = false, applied = true;
};

inline void check_running_statistics(Device& device, const RunningCase& c) {
  SCOPED_TRACE(fmt::format("{} [{}, 2, {}]{}{}", name_of(c.dtype), c.micro_batches, c.width,
                           c.controlled ? " with control" : "", c.applied ? "" : ", skipped"));
  const Stream stream(device);
  HostTensor records = HostTensor::normal(c.dtype, {c.micro_batches, 2, c.width}, 1);
  HostTensor frames(c.dtype, {c.micro_batches});
  // No frame, or one frame: there is no variance, and the record's must not be read.
  for (std::int64_t m = 0; m < c.micro_batches; ++m) {
    frames.set(m, static_cast<double>(m % 4 == 1 ? 0 : m % 4 == 2 ? 1 : 2 + 300 * m));
    for (std::int64_t i = 0; m % 4 % 3 != 0 && i < 2 * c.width; ++i)
      records.set(2 * m * c.width + i, NAN);
  }
  HostTensor mean = HostTensor::normal(c.dtype, {c.width}, 2),
             variance = HostTensor::normal(c.dtype, {c.width}, 3);
  HostTensor expected_mean = mean.to(DType::f64), expected_variance = variance.to(DType::f64);
  Mirror mirror(device);
  const ops::StepControl step{.apply = c.applied ? 1.0 : 0.0};
  Buffer control(device, sizeof step);
  device.copy_from_host(control.data(), &step, sizeof step);
  const auto* on_device = static_cast<const ops::StepControl*>(control.data());
  ops::update_running_statistics(stream, {.records = mirror.in(records),
                                          .frames = mirror.in(frames),
                                          .mean = mirror.io(mean),
                                          .variance = mirror.io(variance),
                                          .momentum = 0.3,
                                          .control = c.controlled ? on_device : nullptr});
  mirror.fetch();
  const HostTensor records64 = records.to(DType::f64), frames64 = frames.to(DType::f64);
  ref::update_running_statistics({.records = records64,
                                  .frames = frames64,
                                  .mean = expected_mean,
                                  .variance = expected_variance,
                                  .momentum = 0.3,
                                  .control = c.controlled ? &step : nullptr});
  // Averages of the given numbers, in f64 for any type, rounded once when they are stored.
  const double u = unit_roundoff(c.dtype),
               deep = 4 * unit_roundoff(DType::f64) * static_cast<double>(c.micro_batches) * 6;
  expect_close(mean, expected_mean, 2 * u, deep, "mean");
  expect_close(variance, expected_variance, 2 * u, deep, "variance");
}

}  // namespace choir::test
