// Products with an activation, its gradient, or bias gradients: against the f64 reference, against
// the ops they are made of, and by differences.
#include "choir/device/null_device.hpp"
#include "choir/ops/activation.hpp"
#include "choir/ops/gemm.hpp"
#include "choir/ops/reduce.hpp"
#include "kernels/gemm.hpp"
#include "test/support/gradcheck.hpp"

namespace choir {
namespace {

using ops::GemmEpilogue;

struct Size {
  std::int64_t m, n, k;
};
constexpr Size kSizes[] = {{1, 1, 1}, {17, 3, 7}, {64, 48, 32}, {65, 129, 100}, {300, 33, 20}};

std::string name_of(DType type, const Size& s) {
  return fmt::format("{} {} x {} x {}", name_of(type), s.m, s.n, s.k);
}

HostTensor workspace(const Stream& stream, std::int64_t rows, std::int64_t width) {
  return HostTensor(DType::u8, {ops::gemm_sums_workspace(stream, rows, width)});
}

GemmArgs reference(const Size& s, const HostTensor& a, const HostTensor& b, const HostTensor& c) {
  GemmArgs args{.m = s.m, .n = s.n, .k = s.k, .in = DType::f64, .out = DType::f64};
  args.a = a.data(), args.b = b.data(), args.c = c.data();
  return args;
}

/// Of sums of k products of unit normals, as in gemm_test.cpp.
double sum_error(DType type, std::int64_t k) {
  return 4 * unit_roundoff(sum_dtype(type)) * static_cast<double>(k + 2);
}

TEST(GemmEpilogue, GeluTanhKeepsItsInput) {
  for (const DType type : kElementTypes)
    for (const Size& s : kSizes) {
      SCOPED_TRACE(name_of(type, s));
      CpuBench cpu;
      const HostTensor x = HostTensor::normal(type, {s.m, s.k}, 1),
                       w = HostTensor::normal(type, {s.n, s.k}, 2, 0.3),
                       bias = HostTensor::normal(type, {s.n}, 3);
      HostTensor y(type, {s.m, s.n}), before(type, {s.m, s.n}), alone(type, {s.m, s.n});
      const auto options = [&](const HostTensor& kept) {
        return ops::GemmOptions{.transpose_b = true,
                                .bias = bias,
                                .epilogue = GemmEpilogue::gelu_tanh,
                                .pre_activation = kept};
      };
      ops::gemm(cpu.stream, x, w, y, options(before));
      ops::gemm(cpu.stream, x, w, alone, options({}));
      EXPECT_TRUE(y.same_bits(alone)) << "with and without the pre-activation";

      const HostTensor x64 = x.to(DType::f64), w64 = w.to(DType::f64), b64 = bias.to(DType::f64);
      HostTensor exact(DType::f64, y.shape()), exact_before(DType::f64, y.shape());
      GemmArgs args = reference(s, x64, w64, exact);
      args.transpose_b = true, args.bias = b64.data();
      args.epilogue = GemmEpilogue::gelu_tanh, args.pre_activation = exact_before.data();
      ref::gemm(args);
      // The activation sees a rounded product; its slope is at most 1.13. The rest is the error of
      // the activation itself, as in activation_test.cpp.
      const double u = unit_roundoff(sum_dtype(type)), store = operation_roundoff(type);
      const double sums = sum_error(type, s.k);
      expect_close(before, exact_before, 1.01 * store, sums + underflow_roundoff(type), "before");
      for (std::int64_t i = 0; i < y.count(); ++i) {
        const double moved = 1.13 * (sums + 1.01 * store * std::fabs(exact_before[i]));
        EXPECT_NEAR(y[i], exact[i],
                    moved + (1.01 * store + 16 * u) * std::fabs(exact[i]) + 64 * u +
                        underflow_roundoff(type));
      }
      EXPECT_TRUE(y.guard_intact() && before.guard_intact());
    }
}

TEST(GemmEpilogue, GeluTanhGradientAndBothSums) {
  for (const DType type : kElementTypes)
    for (const Size& s : kSizes) {
      SCOPED_TRACE(name_of(type, s));
      CpuBench cpu;
      const HostTensor d_y = HostTensor::normal(type, {s.m, s.k}, 1),
                       w = HostTensor::normal(type, {s.k, s.n}, 2),
                       before = HostTensor::normal(type, {s.m, s.n}, 3, 2);
      const DType sum = sum_dtype(type);
      HostTensor d(type, {s.m, s.n}), total = HostTensor::normal(sum, {s.n}, 4);
      const HostTensor started = total, scratch = workspace(cpu.stream, s.m, s.n);
      ops::gemm(cpu.stream, d_y, w, d,
                {.epilogue = GemmEpilogue::gelu_tanh_gradient,
                 .pre_activation = before,
                 .sums_of_c = total,
                 .workspace = scratch});

      const HostTensor d64 = d_y.to(DType::f64), w64 = w.to(DType::f64);
      HostTensor before64 = before.to(DType::f64), exact(DType::f64, d.shape());
      HostTensor exact_sums(DType::f64, {s.n});
      GemmArgs args = reference(s, d64, w64, exact);
      args.epilogue = GemmEpilogue::gelu_tanh_gradient, args.pre_activation = before64.data();
      args.sums_of_c = exact_sums.data();
      ref::gemm(args);
      // The product is rounded once to its type, multiplied by a slope of at most 1.13 that is
      // right to 16 u, and rounded again.
      const double u = unit_roundoff(sum), store = operation_roundoff(type);
      const double absolute = 1.13 * (sum_error(type, s.k) + 2 * underflow_roundoff(type)) +
                              64 * u * std::sqrt(static_cast<double>(s.k));
      expect_close(d, exact, 2.02 * store + 16 * u, absolute, "C");
      for (std::int64_t j = 0; j < s.n; ++j) {
        double size = std::fabs(started[j]), errors = 0;
        for (std::int64_t i = 0; i < s.m; ++i) {
          const double c = std::fabs(exact[i * s.n + j]);
          size += c, errors += (2.02 * store + 16 * u) * c + absolute;
        }
        EXPECT_NEAR(total[j], started[j] + exact_sums[j],
                    errors + u * static_cast<double>(s.m + 2) * size);
      }
      EXPECT_TRUE(d.guard_intact() && total.guard_intact() && scratch.guard_intact());
    }
}

TEST(GemmEpilogue, WeightGradientWithBiasGradient) {
  for (const DType type : kElementTypes)
    for (const Size& s : kSizes) {
      SCOPED_TRACE(name_of(type, s));
      CpuBench cpu;
      const DType sum = sum_dtype(type);
      const HostTensor d_y = HostTensor::normal(type, {s.k, s.m}, 1),
                       x = HostTensor::normal(type, {s.k, s.n}, 2);
      HostTensor d_w = HostTensor::normal(sum, {s.m, s.n}, 3);
      HostTensor d_bias = HostTensor::normal(sum, {s.m}, 4);
      const HostTensor started = d_bias, scratch = workspace(cpu.stream, s.k, s.m);
      HostTensor exact = d_w.to(DType::f64), exact_sums(DType::f64, {s.m});
      ops::gemm(
          cpu.stream, d_y, x, d_w,
          {.transpose_a = true, .accumulate = true, .sums_of_a = d_bias, .workspace = scratch});

      const HostTensor d64 = d_y.to(DType::f64), x64 = x.to(DType::f64);
      GemmArgs args = reference(s, d64, x64, exact);
      args.transpose_a = true, args.accumulate = true, args.sums_of_a = exact_sums.data();
      ref::gemm(args);
      const double u = unit_roundoff(sum);
      expect_close(d_w, exact, 2.01 * u, sum_error(type, s.k), "dW");
      for (std::int64_t i = 0; i < s.m; ++i) {
        double size = std::fabs(started[i]);
        for (std::int64_t p = 0; p < s.k; ++p) size += std::fabs(d64[p * s.m + i]);
        EXPECT_NEAR(d_bias[i], started[i] + exact_sums[i], u * static_cast<double>(s.k + 2) * size);
      }
      EXPECT_TRUE(d_w.guard_intact() && d_bias.guard_intact());
    }
}

TEST(GemmEpilogue, OnTheCpuIsTheOpsOneAfterTheOther) {
  for (const DType type : kElementTypes) {
    CpuBench cpu, apart;
    const std::int64_t rows = 70, in = 33, out = 45;
    const DType sum = sum_dtype(type);
    const HostTensor x = HostTensor::normal(type, {rows, in}, 1),
                     w = HostTensor::normal(type, {out, in}, 2),
                     w2 = HostTensor::normal(type, {in, out}, 3),
                     d_z = HostTensor::normal(type, {rows, in}, 4);
    HostTensor before(type, {rows, out}), y = before, d = before, before2 = before, y2 = before,
                                          d2 = before;
    HostTensor d_w(sum, {out, in}), d_w2 = d_w, d_b = HostTensor::normal(sum, {out}, 5), d_b2 = d_b,
                                    d_c = d_b, d_c2 = d_b;
    const HostTensor scratch = workspace(cpu.stream, rows, out);

    ops::gemm(cpu.stream, x, w, y,
              {.transpose_b = true, .epilogue = GemmEpilogue::gelu_tanh, .pre_activation = before});
    ops::gemm(cpu.stream, d_z, w2, d,
              {.epilogue = GemmEpilogue::gelu_tanh_gradient,
               .pre_activation = before,
               .sums_of_c = d_c,
               .workspace = scratch});
    ops::gemm(cpu.stream, d, x, d_w, {.transpose_a = true, .sums_of_a = d_b, .workspace = scratch});

    constexpr auto kGelu = ops::Activation::gelu_tanh;
    ops::gemm(apart.stream, x, w, before2, {.transpose_b = true});
    ops::activation_forward(apart.stream, kGelu, before2, y2);
    ops::gemm(apart.stream, d_z, w2, d2);
    ops::activation_backward(apart.stream, kGelu, before2, d2, d2);
    ops::bias_gradient(apart.stream, d2, d_c2, scratch);
    ops::gemm(apart.stream, d2, x, d_w2, {.transpose_a = true});
    ops::bias_gradient(apart.stream, d2, d_b2, scratch);

    EXPECT_TRUE(before.same_bits(before2) && y.same_bits(y2) && d.same_bits(d2)) << name_of(type);
    EXPECT_TRUE(d_w.same_bits(d_w2) && d_b.same_bits(d_b2) && d_c.same_bits(d_c2)) << name_of(type);
    EXPECT_DOUBLE_EQ(cpu.work.flops, apart.work.flops);
    EXPECT_DOUBLE_EQ(cpu.work.bytes, apart.work.bytes);
  }
}

/// <v, gelu_tanh(x W^T + b) U^T> and its gradients by the fused forms.
struct TwoLayers {
  CpuBench cpu;
  static constexpr std::int64_t kRows = 6, kIn = 5, kHidden = 7, kOut = 4;
  HostTensor x = HostTensor::normal(DType::f64, {kRows, kIn}, 1);
  HostTensor w = HostTensor::normal(DType::f64, {kHidden, kIn}, 2);
  HostTensor b = HostTensor::normal(DType::f64, {kHidden}, 3);
  HostTensor u = HostTensor::normal(DType::f64, {kOut, kHidden}, 4);
  HostTensor v = HostTensor::normal(DType::f64, {kRows, kOut}, 5);
  HostTensor before{DType::f64, {kRows, kHidden}}, y{DType::f64, {kRows, kHidden}};
  HostTensor z{DType::f64, {kRows, kOut}}, d{DType::f64, {kRows, kHidden}};
  HostTensor d_w{DType::f64, {kHidden, kIn}}, d_x{DType::f64, {kRows, kIn}};
  HostTensor d_b = HostTensor::filled(DType::f64, {kHidden}, 0), d_b2 = d_b;

  double operator()() {
    ops::gemm(cpu.stream, x, w, y,
              {.transpose_b = true,
               .bias = b,
               .epilogue = GemmEpilogue::gelu_tanh,
               .pre_activation = before});
    ops::gemm(cpu.stream, y, u, z, {.transpose_b = true});
    return dot(z, v);
  }
  void gradients() {
    (*this)();
    const HostTensor scratch = workspace(cpu.stream, kRows, kHidden);
    ops::gemm(cpu.stream, v, u, d,
              {.epilogue = GemmEpilogue::gelu_tanh_gradient,
               .pre_activation = before,
               .sums_of_c = d_b2,
               .workspace = scratch});
    ops::gemm(cpu.stream, d, x, d_w, {.transpose_a = true, .sums_of_a = d_b, .workspace = scratch});
    ops::gemm(cpu.stream, d, w, d_x);
  }
};

TEST(GemmEpilogue, GradientsByDifferences) {
  TwoLayers layers;
  layers.gradients();
  const auto loss = [&] { return layers(); };
  expect_gradient(layers.d_w, layers.w, loss, "weight");
  expect_gradient(layers.d_b, layers.b, loss, "bias, from the weight gradient");
  expect_gradient(layers.d_b2, layers.b, loss, "bias, from the pre-activation gradient");
  expect_gradient(layers.d_x, layers.x, loss, "input");
  for (std::uint64_t seed = 1; seed < 4; ++seed)
    expect_directional(layers.d_w, layers.w, seed, loss, "weight");
}

TEST(GemmEpilogue, NullDeviceCountsAndPlansAsTheCpu) {
  NullDevice device;
  WorkCounter work;
  const Stream null(device, &work);
  CpuBench cpu;
  const HostTensor d_y(DType::f32, {8, 16}), x(DType::f32, {8, 32}), d_w(DType::f32, {16, 32}),
      d_b(DType::f32, {16}), before(DType::f32, {16, 32});
  const HostTensor scratch = workspace(cpu.stream, 16, 32);
  EXPECT_EQ(ops::gemm_sums_workspace(null, 16, 32), ops::gemm_sums_workspace(cpu.stream, 16, 32));
  for (const Stream* stream : {&null, static_cast<const Stream*>(&cpu.stream)}) {
    ops::gemm(*stream, d_y, x, d_w, {.transpose_a = true, .sums_of_a = d_b, .workspace = scratch});
    ops::gemm(*stream, d_y, x, d_w,
              {.transpose_a = true, .epilogue = GemmEpilogue::gelu_tanh, .pre_activation = before});
    if (stream == &null) {
      EXPECT_TRUE(std::isnan(d_w[0]));
    }
  }
  EXPECT_DOUBLE_EQ(work.flops, cpu.work.flops);
  EXPECT_DOUBLE_EQ(work.bytes, cpu.work.bytes);
  EXPECT_EQ(ops::gemm_device_bytes(DeviceKind::cpu), 0u);
  EXPECT_EQ(ops::gemm_device_bytes(DeviceKind::cuda), kGemmCudaWorkspace);
}

TEST(GemmEpilogue, RefusesWhatDoesNotFit) {
  CpuBench cpu;
  const HostTensor a(DType::f32, {4, 8}), b(DType::f32, {8, 6}), c(DType::f32, {4, 6});
  const HostTensor sums4(DType::f32, {4}), sums6(DType::f32, {6});
  const HostTensor scratch = workspace(cpu.stream, 8, 8);
  const auto refused = [&](const ops::GemmOptions& options) {
    EXPECT_THROW(ops::gemm(cpu.stream, a, b, c, options), Error);
  };
  refused({.epilogue = GemmEpilogue::gelu_tanh_gradient});                  // of what?
  refused({.epilogue = GemmEpilogue::gelu_tanh, .pre_activation = b});      // wrong size
  refused({.pre_activation = c});                                           // no activation
  refused({.accumulate = true, .epilogue = GemmEpilogue::gelu_tanh});       // += and gelu
  refused({.sums_of_a = sums4, .workspace = scratch});                      // A is [m, k]
  refused({.sums_of_c = sums6});                                            // no workspace
  refused({.sums_of_c = sums4, .workspace = scratch});                      // wrong size
  refused({.accumulate = true, .sums_of_c = sums6, .workspace = scratch});  // sums of a sum
  refused({.bias = sums6, .epilogue = GemmEpilogue::gelu_tanh_gradient, .pre_activation = c});
}

}  // namespace
}  // namespace choir
