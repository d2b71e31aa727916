// Tests of gradients with the sums of a bias: the gradient has the bits of the plain operation, and
// the sums are those of what was stored.
#include "kernels/fused_bias/fused_bias.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "src/device/null_device.hpp"
#include "test/cuda/cuda_fixture.hpp"
#include "test/support/dropout_case.hpp"

namespace choir::test {
namespace {

using ops::Activation;
using ops::BiasSums;

/// A gradient [rows, width], and the two calls that compute it.
struct FusedCase {
  DType dtype;
  std::int64_t rows, width;
  std::function<void(const TensorView& out)> plain;
  std::function<void(const TensorView& out, const BiasSums& bias)> fused;
};

class CudaFusedBias : public CudaTest {
 protected:
  HostTensor check(Mirror& mirror, const FusedCase& c, int skew = 0) {
    SCOPED_TRACE(fmt::format("{} [{}, {}] skew {}", name_of(c.dtype), c.rows, c.width, skew));
    const HostTensor start = HostTensor::normal(DType::f32, {c.width}, 9);
    HostTensor expected(c.dtype, {c.rows, c.width}), out = expected, again = expected;
    HostTensor d_bias = start, second = start;
    const std::int64_t bytes = ops::bias_gradient_workspace(stream(), c.rows, c.width);
    c.plain(mirror.io(expected, skew));
    c.fused(mirror.io(out, skew), {mirror.io(d_bias), mirror.workspace(bytes)});
    c.fused(mirror.io(again, skew), {mirror.io(second), mirror.workspace(bytes)});
    mirror.fetch();
    EXPECT_TRUE(out.same_bits(expected));
    EXPECT_TRUE(second.same_bits(d_bias)) << "not deterministic";
    HostTensor exact = start.to(DType::f64);
    ref::bias_gradient(expected.to(DType::f64), exact);
    double most = 5;  // the largest term
    for (std::int64_t i = 0; i < expected.count(); ++i)
      most = std::max(most, std::fabs(expected[i]));
    // At most `rows` additions and one to the total; each rounds a sum of terms below `most`.
    const double u = unit_roundoff(DType::f32), terms = static_cast<double>(c.rows) + 1;
    expect_close(d_bias, exact, u, terms * u * most * terms, "d_bias");
    return d_bias;
  }
  HostTensor activation(Activation kind, DType dtype, std::int64_t rows, std::int64_t width,
                        int skew = 0) {
    const HostTensor x = HostTensor::normal(dtype, {rows, width}, 1, 3),
                     d_y = HostTensor::normal(dtype, {rows, width}, 2);
    Mirror mirror(device());
    const TensorView in = mirror.in(x, skew), d = mirror.in(d_y, skew);
    return check(
        mirror,
        {dtype, rows, width,
         [&](const TensorView& out) { ops::activation_backward(stream(), kind, in, d, out); },
         [&](const TensorView& out, const BiasSums& bias) {
           ops::activation_backward(stream(), kind, in, d, out, bias);
         }},
        skew);
  }
  void gate(DType dtype, std::int64_t samples, std::int64_t tokens, std::int64_t width,
            bool masked) {
    const std::int64_t rows = samples * tokens;
    const HostTensor x = HostTensor::normal(dtype, {rows, 2 * width}, 1),
                     d_y = HostTensor::normal(dtype, {rows, width}, 2);
    std::array<std::int32_t, 4> lengths{};
    for (int i = 0; i < 4; ++i)
      lengths[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(tokens) - 2 * i;
    Mirror mirror(device());
    const std::int32_t* valid = masked ? mirror.object(lengths)->data() : nullptr;
    const TensorView in = mirror.in(x), d = mirror.in(d_y);
    check(mirror,
          {dtype, rows, 2 * width,
           [&](const TensorView& out) { ops::glu_backward(stream(), in, d, out, valid, tokens); },
           [&](const TensorView& out, const BiasSums& bias) {
             ops::glu_backward(stream(), in, d, out, valid, tokens, bias);
           }});
  }
  void dropped(DType dtype, std::int64_t width, double probability, bool ids = false) {
    const HostTensor d_y = HostTensor::normal(dtype, {36, width}, 1);
    std::array<std::int64_t, 9> named{(std::int64_t{1} << 40) + 7, 0, 12345, 3, 4, 5, 6, 7, 8};
    Mirror mirror(device());
    const TensorView in = mirror.in(d_y);
    const std::int64_t* names = ids ? mirror.object(named)->data() : nullptr;
    const auto call = [&](const TensorView& out) {
      ops::Dropout args = dropout_arguments(in, out, probability);
      args.factor = 0.5, args.sample_ids = names;
      return args;
    };
    check(mirror,
          {dtype, 36, width, [&](const TensorView& out) { ops::dropout(stream(), call(out)); },
           [&](const TensorView& out, const BiasSums& bias) {
             ops::dropout(stream(), call(out), bias);
           }});
  }
};

TEST_F(CudaFusedBias, Activations) {
  for (const DType dtype : kGpuTypes)
    for (const Activation kind :
         {Activation::gelu, Activation::gelu_tanh, Activation::relu, Activation::silu})
      for (const auto& [rows, width] : {std::pair{1, 8}, {33, 264}, {70, 40}, {5, 7}})
        activation(kind, dtype, rows, width);
}

TEST_F(CudaFusedBias, AnyAlignment) {
  for (const DType dtype : kGpuTypes)
    for (const int skew : {1, 2}) activation(Activation::silu, dtype, 9, 64, skew);
}

TEST_F(CudaFusedBias, Gates) {
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t width : {7, 8, 136})
      for (const bool masked : {false, true}) gate(dtype, 4, 9, width, masked);
}

TEST_F(CudaFusedBias, Dropouts) {
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t width : {7, 8, 136})
      for (const double probability : {0.0, 0.4}) dropped(dtype, width, probability);
  dropped(DType::bf16, 40, 0.4, true);
}

// The order of additions is that of bias_gradient() in two stages.
TEST_F(CudaFusedBias, SumsHaveTheBitsOfTwoStages) {
  constexpr std::int64_t kRows = 16385, kWidth = 8;
  const HostTensor fused = activation(Activation::relu, DType::bf16, kRows, kWidth);
  const HostTensor x = HostTensor::normal(DType::bf16, {kRows, kWidth}, 1, 3),
                   d_y = HostTensor::normal(DType::bf16, {kRows, kWidth}, 2);
  HostTensor d_x(DType::bf16, {kRows, kWidth}), sums = HostTensor::normal(DType::f32, {kWidth}, 9);
  Mirror mirror(device());
  const TensorView gradient = mirror.io(d_x);
  ops::activation_backward(stream(), Activation::relu, mirror.in(x), mirror.in(d_y), gradient);
  ops::bias_gradient(stream(), gradient, mirror.io(sums),
                     mirror.workspace(ops::bias_gradient_workspace(stream(), kRows, kWidth)));
  mirror.fetch();
  EXPECT_TRUE(sums.same_bits(fused));
}

TEST_F(CudaFusedBias, RunsInPlace) {
  const HostTensor x = HostTensor::normal(DType::bf16, {40, 24}, 1, 3),
                   d_y = HostTensor::normal(DType::bf16, {40, 24}, 2);
  HostTensor apart(DType::bf16, {40, 24}), inside = d_y, sums(DType::f32, {24});
  Mirror mirror(device());
  const TensorView in = mirror.in(x), gradient = mirror.io(inside), d_bias = mirror.io(sums);
  ops::activation_backward(stream(), Activation::silu, in, gradient, mirror.io(apart));
  ops::activation_backward(
      stream(), Activation::silu, in, gradient, gradient,
      {d_bias, mirror.workspace(ops::bias_gradient_workspace(stream(), 40, 24))});
  mirror.fetch();
  EXPECT_TRUE(inside.same_bits(apart));
}

TEST_F(CudaFusedBias, AllTsan) {
  activation(Activation::silu, DType::bf16, 40, 40);
  gate(DType::bf16, 4, 9, 16, true);
  dropped(DType::bf16, 40, 0.4);
}

TEST_F(CudaFusedBias, ThePlanCountsNoSecondReading) {
  NullDevice planned(DeviceKind::cuda);
  WorkCounter counter;
  const Stream counted(planned, &counter);
  const Buffer memory(planned, std::size_t{1} << 20);
  const TensorView d{memory.data(), DType::bf16, {64, 32}}, d_bias{memory.data(), DType::f32, {32}},
      workspace{memory.data(), DType::u8, {1 << 20}};
  ops::activation_backward(counted, Activation::silu, d, d, d, {d_bias, workspace});
  EXPECT_EQ(counter.bytes, 3 * 64 * 32 * 2 + 2 * 32 * 4);
}

}  // namespace
}  // namespace choir::test
