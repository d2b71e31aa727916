#include "choir/ops/norm.hpp"

#include <omp.h>

#include "src/device/null_device.hpp"
#include "test/support/gradcheck.hpp"
#include "test/support/norm_case.hpp"

namespace choir::test {
namespace {

using ops::Norm;

TEST(Norm, MatchesTheReferenceForRaggedShapesAndAllTypes) {
  CpuDevice device;
  for (const DType dtype : kElementTypes)
    for (const Norm kind : {Norm::layernorm, Norm::rmsnorm})
      for (const std::int64_t width : {3, 7, 16, 17, 63, 65, 128, 768, 1000})
        for (const std::int64_t rows : {1, 5, 67})
          for (const bool delta : {false, true})
            check_norm(device,
                       {kind, dtype, rows, width, delta, kind == Norm::layernorm && rows != 5});
}

TEST(Norm, AddsAnOffsetToTheWeight) {
  CpuDevice device;
  for (const DType dtype : kElementTypes)
    for (const std::int64_t width : {7, 65, 768})
      for (const bool layer : {false, true})
        check_norm(device,
                   {layer ? Norm::layernorm : Norm::rmsnorm, dtype, 5, width, layer, layer, 0, 1});
}

// In bf16 1 + 2^-9 is 1, but the sum of offset and weight is exact in the type of sums. The row is
// its own norm, and the bias cancels the 1, so that only the 2^-9 remains.
TEST(Norm, TheOffsetIsNotRoundedToTheElementType) {
  CpuBench cpu;
  NormTensors t({Norm::layernorm, DType::bf16, 1, 2, false, true, 0, 1});
  t.residual.set(0, 1), t.residual.set(1, -1);
  t.weight.set(0, 0x1p-9), t.weight.set(1, 0x1p-9);  // 1 + weight is 1 in bf16
  t.bias.set(0, -1), t.bias.set(1, 1);
  ops::NormForward args = t.forward(Norm::layernorm);
  args.eps = 0;
  ops::norm_forward(cpu.stream, args);
  EXPECT_EQ(t.out[0], 0x1p-9);
  EXPECT_EQ(t.out[1], -0x1p-9);
}

TEST(Norm, WidthOneGivesTheBias) {
  CpuBench cpu;
  NormTensors t({Norm::layernorm, DType::f32, 4, 1, false, true});
  ops::norm_forward(cpu.stream, t.forward(Norm::layernorm));
  for (int r = 0; r < 4; ++r) EXPECT_EQ(t.out[r], t.bias[0]);
}

TEST(Norm, SumMayOverwriteResidualOrDelta) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const bool over_residual : {true, false}) {
      CpuBench cpu;
      const NormCase c{Norm::layernorm, dtype, 9, 65, true, true};
      NormTensors apart(c), inside(c);
      ops::norm_forward(cpu.stream, apart.forward(c.kind));
      auto args = inside.forward(c.kind);
      args.sum = over_residual ? inside.residual : inside.delta;
      ops::norm_forward(cpu.stream, args);
      EXPECT_TRUE(apart.sum.same_bits(over_residual ? inside.residual : inside.delta));
      EXPECT_TRUE(apart.out.same_bits(inside.out));
    }
}

TEST(Norm, GradientsAgreeWithFiniteDifferences) {
  for (const Norm kind : {Norm::layernorm, Norm::rmsnorm})
    for (const std::int64_t width : {7, 65}) {
      CpuBench cpu;
      NormTensors t(
          {kind, DType::f64, 4, width, false, kind == Norm::layernorm, 0, width == 7 ? 1.0 : 0.0});
      const auto loss = [&] {
        ops::norm_forward(cpu.stream, t.forward(kind));
        return dot(t.out, t.d_out);
      };
      loss();
      for (HostTensor* g : {&t.d_weight, &t.d_bias})
        *g = g->count() ? HostTensor::filled(DType::f64, g->shape(), 0) : *g;
      ops::norm_backward(cpu.stream, t.backward(kind, false));
      const NormTensors done = t;
      expect_gradient(done.d_sum, t.residual, loss, "norm to x");
      expect_gradient(done.d_weight, t.weight, loss, "norm to weight");
      if (t.bias.count() > 0) expect_gradient(done.d_bias, t.bias, loss, "norm to bias");
      expect_directional(done.d_sum, t.residual, 11, loss, "norm to x");
    }
}

TEST(Norm, BitsDoNotDependOnThreads) {
  const int threads = omp_get_max_threads();
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const NormCase c{Norm::layernorm, dtype, 515, 129, true, true};
    std::vector<NormTensors> results;
    for (int n = 1; n <= 4; ++n) {
      omp_set_num_threads(n);
      CpuBench cpu;
      NormTensors t(c);
      ops::norm_forward(cpu.stream, t.forward(c.kind));
      ops::norm_backward(cpu.stream, t.backward(c.kind, true));
      results.push_back(t);
      EXPECT_TRUE(t.d_weight.same_bits(results[0].d_weight)) << n << " threads";
      EXPECT_TRUE(t.d_bias.same_bits(results[0].d_bias)) << n << " threads";
      EXPECT_TRUE(t.d_sum.same_bits(results[0].d_sum)) << n << " threads";
    }
  }
  omp_set_num_threads(threads);
}

TEST(Norm, RefusesWhatDoesNotFitAndCountsOnTheNullDevice) {
  CpuBench cpu;
  const NormCase c{Norm::layernorm, DType::f32, 6, 16, false, true};
  NormTensors t(c);
  auto args = t.forward(c.kind);
  args.mean = TensorView{};
  EXPECT_THROW(ops::norm_forward(cpu.stream, args), Error);
  auto back = t.backward(c.kind, true);
  back.workspace.shape = Shape{8};
  EXPECT_THROW(ops::norm_backward(cpu.stream, back), Error);

  NullDevice nothing;
  WorkCounter work;
  const Stream stream(nothing, &work);
  auto nowhere = t.forward(c.kind);
  for (TensorView* x : {&nowhere.residual, &nowhere.weight, &nowhere.bias, &nowhere.out,
                        &nowhere.mean, &nowhere.rstd})
    x->data = nothing.allocate(x->bytes());
  ops::norm_forward(stream, nowhere);
  EXPECT_EQ(work.bytes, 4.0 * (2 * 6 * 16 + 2 * 16 + 2 * 6));
  EXPECT_EQ(work.flops, 8.0 * 6 * 16);
}

}  // namespace
}  // namespace choir::test
