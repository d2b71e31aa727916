#pragma once
// A product with an epilogue, on any device, against the f64 reference.
#include "kernels/gemm/gemm.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {

struct GemmEpilogueCase {
  std::int64_t m, n, k;
  DType dtype;
  /// Absolute error of the activation and its slope, beyond roundings.
  double approximation = 0;
  /// Relative error of the tanh in them: 2^-11 if a library may use PTX's tanh.approx.f32.
  double tanh_error = 0;
  /// A library may round the product to its type before it adds the bias: on an H200 cuBLASLt 13.0
  /// did so for 9 x 5 x 7 and not for 17 x 24 x 40.
  bool rounds_before_bias = false;
  bool exact = false;  ///< gelu in place of gelu_tanh

  std::string name() const {
    return fmt::format("{} {} x {} x {}{}", name_of(dtype), m, n, k, exact ? ", exact" : "");
  }

  /// C = gelu(X W^T + b); its argument is kept or not.
  void check_gelu(Device& device) const;
  /// C = (d_Y W) gelu'(before).
  void check_gradient(Device& device) const;

 private:
  using Epilogue = ops::GemmEpilogue;
  Epilogue forward() const { return exact ? Epilogue::gelu : Epilogue::gelu_tanh; }
  Epilogue gradient() const {
    return exact ? Epilogue::gelu_gradient : Epilogue::gelu_tanh_gradient;
  }
  double u() const { return unit_roundoff(sum_dtype(dtype)); }
  /// The error of sums of k products of unit normals, as in gemm_test.cpp.
  double sum_error() const { return 4 * u() * static_cast<double>(k + 2); }
  /// Errors that follow from tanh_error for x (1 + tanh u) / 2 and for its slope (1 + t) / 2 + x (1
  /// - t^2) u' / 2, with t at most 1.
  double gelu_error(double x) const { return 0.5 * tanh_error * std::fabs(x); }
  double slope_error(double x) const {
    const double inner_slope = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    return tanh_error * (0.5 + (1 + tanh_error) * std::fabs(x) * inner_slope);
  }
  GemmArgs reference(const HostTensor& a, const HostTensor& b, const HostTensor& c) const {
    GemmArgs args{.m = m, .n = n, .k = k, .in = DType::f64, .out = DType::f64};
    args.a = a.data(), args.b = b.data(), args.c = c.data();
    return args;
  }
};

inline void GemmEpilogueCase::check_gelu(Device& device) const {
  const HostTensor x = HostTensor::normal(dtype, {m, k}, 1),
                   w = HostTensor::normal(dtype, {n, k}, 2, 0.3),
                   bias = HostTensor::normal(dtype, {n}, 3);
  HostTensor y(dtype, {m, n}), before(dtype, {m, n}), alone(dtype, {m, n});
  Mirror mirror(device);
  const TensorView x_view = mirror.in(x), w_view = mirror.in(w), b_view = mirror.in(bias);
  const auto options = [&](const TensorView& kept) {
    return ops::GemmOptions{
        .transpose_b = true, .bias = b_view, .epilogue = forward(), .pre_activation = kept};
  };
  ops::gemm(Stream(device), x_view, w_view, mirror.io(y), options(mirror.io(before)));
  ops::gemm(Stream(device), x_view, w_view, mirror.io(alone), options({}));
  mirror.fetch();

  const HostTensor x64 = x.to(DType::f64), w64 = w.to(DType::f64), b64 = bias.to(DType::f64);
  HostTensor exact(DType::f64, y.shape()), exact_before(DType::f64, y.shape());
  GemmArgs args = reference(x64, w64, exact);
  args.transpose_b = true, args.bias = b64.data();
  args.epilogue = forward(), args.pre_activation = exact_before.data();
  ref::gemm(args);
  // The activation may see a rounded product; its slope is at most 1.13. The rest is the error of
  // the activation itself, as in activation_case.hpp.
  const double store = operation_roundoff(dtype);
  const auto product_error = [&](std::int64_t i) {
    const double product = rounds_before_bias ? std::fabs(exact_before[i] - b64[i % n]) : 0;
    return 1.01 * store * (product + std::fabs(exact_before[i])) + sum_error();
  };
  for (std::int64_t i = 0; i < y.count(); ++i)
    EXPECT_NEAR(before[i], exact_before[i], product_error(i) + underflow_roundoff(dtype)) << i;
  EXPECT_TRUE(before.guard_intact());
  for (const HostTensor* result : {&y, &alone})
    for (std::int64_t i = 0; i < y.count(); ++i) {
      const double moved = 1.13 * product_error(i);
      EXPECT_NEAR((*result)[i], exact[i],
                  moved + (1.01 * store + 16 * u()) * std::fabs(exact[i]) + 64 * u() +
                      approximation + gelu_error(exact_before[i]) + underflow_roundoff(dtype));
    }
}

inline void GemmEpilogueCase::check_gradient(Device& device) const {
  const HostTensor d_y = HostTensor::normal(dtype, {m, k}, 1),
                   w = HostTensor::normal(dtype, {k, n}, 2),
                   before = HostTensor::normal(dtype, {m, n}, 3, 2);
  HostTensor d(dtype, {m, n});
  Mirror mirror(device);
  ops::gemm(Stream(device), mirror.in(d_y), mirror.in(w), mirror.io(d),
            {.epilogue = gradient(), .pre_activation = mirror.in(before)});
  mirror.fetch();

  const HostTensor d64 = d_y.to(DType::f64), w64 = w.to(DType::f64);
  const HostTensor before64 = before.to(DType::f64);
  HostTensor exact(DType::f64, d.shape());
  GemmArgs args = reference(d64, w64, exact);
  args.epilogue = gradient(), args.pre_activation = before64.data();
  ref::gemm(args);
  // The product is rounded at most once to its type, multiplied by a slope of at most 1.13 with an
  // error of 16 u, and rounded again. Products stay below 6 sqrt(k).
  const double store = operation_roundoff(dtype), root = std::sqrt(static_cast<double>(k));
  const double relative = 2.02 * store + 16 * u();
  const double absolute =
      1.13 * (sum_error() + 2 * underflow_roundoff(dtype)) + (64 * u() + 6 * approximation) * root;
  const auto error = [&](std::int64_t at) {
    return relative * std::fabs(exact[at]) + absolute + 6 * root * slope_error(before64[at]);
  };
  for (std::int64_t i = 0; i < d.count(); ++i) EXPECT_NEAR(d[i], exact[i], error(i)) << i;
  EXPECT_TRUE(d.guard_intact());
}

}  // namespace choir::test
