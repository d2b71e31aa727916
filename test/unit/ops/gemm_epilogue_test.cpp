// Products with an activation or its gradient: they are compared with the f64 reference and with
// separate ops, and their gradients with differences.
#include "test/support/gemm_epilogue_case.hpp"

#include "choir/ops/activation.hpp"
#include "kernels/sums/sums.hpp"
#include "src/device/null_device.hpp"
#include "test/support/gradcheck.hpp"

namespace choir {
namespace {

using ops::GemmEpilogue;
using test::GemmEpilogueCase;

TEST(GemmEpilogue, MatchesTheReference) {
  constexpr std::int64_t kSizes[][3] = {
      {1, 1, 1}, {17, 3, 7}, {64, 48, 32}, {65, 129, 100}, {300, 33, 20}};
  CpuDevice cpu;
  for (const DType type : kElementTypes)
    for (const auto& [m, n, k] : kSizes)
      for (const bool exact : {false, true}) {
        const GemmEpilogueCase c{.m = m, .n = n, .k = k, .dtype = type, .exact = exact};
        SCOPED_TRACE(c.name());
        c.check_gelu(cpu);
        c.check_gradient(cpu);
      }
}

TEST(GemmEpilogue, OnTheCpuIsTheOpsOneAfterTheOther) {
  for (const DType type : kElementTypes) {
    CpuBench cpu, apart;
    const std::int64_t rows = 70, in = 33, out = 45;
    const HostTensor x = HostTensor::normal(type, {rows, in}, 1),
                     w = HostTensor::normal(type, {out, in}, 2),
                     w2 = HostTensor::normal(type, {in, out}, 3),
                     d_z = HostTensor::normal(type, {rows, in}, 4);
    HostTensor before(type, {rows, out}), y = before, d = before, before2 = before, y2 = before,
                                          d2 = before;

    ops::gemm(cpu.stream, x, w, y,
              {.transpose_b = true, .epilogue = GemmEpilogue::gelu_tanh, .pre_activation = before});
    ops::gemm(cpu.stream, d_z, w2, d,
              {.epilogue = GemmEpilogue::gelu_tanh_gradient, .pre_activation = before});

    constexpr auto kGelu = ops::Activation::gelu_tanh;
    ops::gemm(apart.stream, x, w, before2, {.transpose_b = true});
    ops::activation_forward(apart.stream, kGelu, before2, y2);
    ops::gemm(apart.stream, d_z, w2, d2);
    ops::activation_backward(apart.stream, kGelu, before2, d2, d2);

    EXPECT_TRUE(before.same_bits(before2) && y.same_bits(y2) && d.same_bits(d2)) << name_of(type);
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
  HostTensor d_b = HostTensor::filled(DType::f64, {kHidden}, 0);

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
    ops::gemm(cpu.stream, v, u, d,
              {.epilogue = GemmEpilogue::gelu_tanh_gradient, .pre_activation = before});
    ops::gemm(cpu.stream, d, x, d_w, {.transpose_a = true});
    const HostTensor scratch(DType::u8, {ops::bias_gradient_workspace(cpu.stream, kRows, kHidden)});
    ops::bias_gradient(cpu.stream, d, d_b, scratch);
    ops::gemm(cpu.stream, d, w, d_x);
  }
};

TEST(GemmEpilogue, GradientsByDifferences) {
  TwoLayers layers;
  layers.gradients();
  const auto loss = [&] { return layers(); };
  expect_gradient(layers.d_w, layers.w, loss, "weight");
  expect_gradient(layers.d_b, layers.b, loss, "bias");
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
      before(DType::f32, {16, 32});
  for (const Stream* stream : {&null, static_cast<const Stream*>(&cpu.stream)}) {
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
  const HostTensor bias(DType::f32, {6});
  const auto refused = [&](const ops::GemmOptions& options) {
    EXPECT_THROW(ops::gemm(cpu.stream, a, b, c, options), Error);
  };
  refused({.epilogue = GemmEpilogue::gelu_tanh_gradient});              // no pre-activation
  refused({.epilogue = GemmEpilogue::gelu_tanh, .pre_activation = b});  // wrong size
  refused({.pre_activation = c});                                       // no activation
  refused({.accumulate = true, .epilogue = GemmEpilogue::gelu_tanh});   // += and gelu
  refused({.bias = bias, .epilogue = GemmEpilogue::gelu_tanh_gradient, .pre_activation = c});
}

}  // namespace
}  // namespace choir
