#pragma once
// Finite scalar quantisation and the L1 loss against their references, on any device.
#include <algorithm>
#include <cmath>

#include "kernels/fsq/fsq.hpp"
#include "kernels/l1_loss/l1_loss.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {

struct FsqCase {
  DType dtype;
  const char* levels;
  std::int64_t rows, books;

  /// Numbers whose squashed values keep away from thresholds, at which two precisions may differ:
  /// by more than the error of tanh in fp32.
  HostTensor numbers() const {
    const ops::FsqLevels all = ops::FsqLevels::parse(levels, "levels");
    const FsqNumbers of = fsq_numbers(all);
    HostTensor x = HostTensor::normal(dtype, {rows, books * all.count}, 5);
    for (std::int64_t i = 0; i < x.count(); ++i) {
      const FsqNumber& n = of.of[i % all.count];
      const double y = n.scale * std::tanh(x[i] + n.shift) - n.offset;
      if (std::fabs(std::fabs(y - std::rint(y)) - 0.5) < 1e-4) x.set(i, 0.25);
    }
    return x;
  }

  void check(Device& device) const {
    SCOPED_TRACE(fmt::format("{} {} rows of {} x {}", name_of(dtype), rows, books, levels));
    const ops::FsqLevels all = ops::FsqLevels::parse(levels, "levels");
    const HostTensor x = numbers(), d_codes = HostTensor::normal(dtype, x.view().shape, 6);
    HostTensor codes(dtype, x.view().shape), d_x(dtype, x.view().shape), again = codes;
    HostTensor indices(DType::i32, {rows, books});
    Mirror mirror(device);
    const Stream stream(device);
    const TensorView in = mirror.in(x), made = mirror.io(codes), numbered = mirror.io(indices);
    ops::fsq_forward(stream, {.levels = all, .in = in, .codes = made});
    ops::fsq_backward(
        stream, {.levels = all, .in = in, .d_codes = mirror.in(d_codes), .d_in = mirror.io(d_x)});
    ops::fsq_indices(stream, {.levels = all, .codes = made, .indices = numbered});
    ops::fsq_codes(stream, {.levels = all, .indices = numbered, .codes = mirror.io(again)});
    mirror.fetch();
    const HostTensor x64 = x.to(DType::f64), d64 = d_codes.to(DType::f64);
    HostTensor exact(DType::f64, x.view().shape), d_exact = exact;
    HostTensor index(DType::i32, {rows, books});
    ref::fsq_forward({.levels = all, .in = x64, .codes = exact});
    ref::fsq_backward({.levels = all, .in = x64, .d_codes = d64, .d_in = d_exact});
    ref::fsq_indices({.levels = all, .codes = exact, .indices = index});
    // A code is a quotient of small integers; the slope 1 - t^2 has the error of tanh, relative to
    // at most h / s <= 2.
    expect_close(codes, exact, 2 * unit_roundoff(dtype), 0, "codes");
    const double u = operation_roundoff(dtype);
    expect_close(d_x, d_exact, unit_roundoff(dtype) + 16 * u, 40 * u, "gradient");
    expect_close(indices, index, 0, 0, "indices");
    expect_close(again, codes, 0, 0, "codes of indices");
  }
};

struct L1LossCase {
  DType dtype;
  std::int64_t sequences, tokens, width;

  void check(Device& device) const {
    SCOPED_TRACE(
        fmt::format("{} {} sequences of {} rows of {}", name_of(dtype), sequences, tokens, width));
    const std::int64_t rows = sequences * tokens;
    HostTensor predicted = HostTensor::normal(dtype, {rows, width}, 1);
    HostTensor target = HostTensor::normal(sum_dtype(dtype), {rows, width}, 2);
    target.set(width / 2, predicted[width / 2]);  // no difference, no gradient
    HostTensor lengths(DType::i32, {sequences});
    for (std::int64_t b = 0; b < sequences; ++b)
      lengths.set(b, static_cast<double>(b == 0 ? tokens : (b * 5) % (tokens + 1)));
    // Rows that do not count may contain anything.
    for (std::int64_t b = 0; b < sequences; ++b)
      if (lengths[b] < static_cast<double>(tokens))
        predicted.set(((b + 1) * tokens - 1) * width, NAN);
    HostTensor d_predicted = predicted, losses(sum_dtype(dtype), {rows});
    const HostTensor scale = HostTensor::filled(DType::f64, {1}, 0.5);
    Mirror mirror(device);
    const Stream stream(device);
    ops::l1_loss(stream, {.predicted = mirror.io(d_predicted),
                          .target = mirror.in(target),
                          .lengths = mirror.in(lengths).as<std::int32_t>(),
                          .tokens = tokens,
                          .losses = mirror.io(losses),
                          .factor = 3.0 / static_cast<double>(width),
                          .scale = 0.125,
                          .device_scale = mirror.in(scale).as<double>()});
    mirror.fetch();
    HostTensor d_exact = predicted.to(DType::f64), exact(DType::f64, {rows});
    const HostTensor target64 = target.to(DType::f64);
    ref::l1_loss({.predicted = d_exact,
                  .target = target64,
                  .lengths = lengths.as<std::int32_t>(),
                  .tokens = tokens,
                  .losses = exact,
                  .factor = 3.0 / static_cast<double>(width),
                  .scale = 0.125,
                  .device_scale = scale.as<double>()});
    const double u = operation_roundoff(dtype);
    expect_close(losses, exact, static_cast<double>(width + 3) * u, 0, "losses");
    expect_close(d_predicted, d_exact, unit_roundoff(dtype) + 3 * u, 0, "gradient");
  }
};

}  // namespace choir::test
