// Tests of norms that apply the dropout of the branch before them: all results have the bits of the
// separate operations, and the sums of the branch's bias are those of what was stored.
#include <algorithm>
#include <array>

#include "kernels/sums/sums.hpp"
#include "src/device/null_device.hpp"
#include "test/cuda/cuda_fixture.hpp"
#include "test/support/dropout_case.hpp"
#include "test/support/norm_case.hpp"

namespace choir::test {
namespace {

using ops::Norm;

struct DroppedCase {
  DType dtype;
  std::int64_t rows, width;
  Norm kind = Norm::layernorm;
  double probability = 0.4;
  bool accumulate = true, ids = false, bias = true;
  int skew = 0;
};

class CudaNormDropout : public CudaTest {
 protected:
  /// The dropout of a tensor of `c`; sequences have 4 rows. The number of the first sample is on
  /// the device, as in recorded steps.
  static ops::Dropout dropout(const DroppedCase& c, const TensorView& in, const TensorView& out,
                              Mirror& mirror) {
    static std::array<std::int64_t, 64> ids{};
    static std::int64_t first = 3;
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<std::int64_t>(i * i + (i << 40));
    ops::Dropout args = dropout_arguments(in, out, c.probability);
    args.factor = 0.5;
    if (c.ids)
      args.sample_ids = mirror.object(ids)->data();
    else
      args.first_sample_on_device = mirror.object(first);
    return args;
  }

  void forward(const DroppedCase& c) {
    const NormCase shape{c.kind, c.dtype, c.rows, c.width, true, c.bias, c.skew};
    NormTensors apart(shape), fused(shape);
    for (NormTensors* t : {&apart, &fused}) {
      Mirror mirror(device());
      ops::NormForward f;
      f.kind = c.kind, f.residual = mirror.in(t->residual, c.skew);
      f.delta = mirror.in(t->delta, c.skew);
      f.weight = mirror.in(t->weight, c.skew), f.bias = mirror.in(t->bias, c.skew);
      f.sum = mirror.io(t->sum, c.skew), f.out = mirror.io(t->out, c.skew);
      if (c.kind == Norm::layernorm) f.mean = mirror.io(t->mean);
      f.rstd = mirror.io(t->rstd);
      const ops::Dropout args = dropout(c, f.delta, f.delta, mirror);
      if (t == &fused) {
        ops::norm_forward(stream(), f, args);
      } else {
        ops::dropout(stream(), args);
        ops::norm_forward(stream(), f);
      }
      mirror.fetch();
    }
    EXPECT_TRUE(fused.sum.same_bits(apart.sum)) << "sum";
    EXPECT_TRUE(fused.out.same_bits(apart.out)) << "out";
    EXPECT_TRUE(fused.rstd.same_bits(apart.rstd)) << "rstd";
    EXPECT_TRUE(c.kind == Norm::rmsnorm || fused.mean.same_bits(apart.mean)) << "mean";
  }

  void backward(const DroppedCase& c) {
    const NormCase shape{c.kind, c.dtype, c.rows, c.width, false, c.bias, c.skew};
    NormTensors start(shape);
    start.forward_on(device(), shape);
    if (!c.accumulate) start.d_sum.poison();
    NormTensors apart = start, fused = start, again = start;
    HostTensor expected(c.dtype, {c.rows, c.width}), d_delta = expected, second = expected;
    HostTensor sums = HostTensor::normal(DType::f32, {c.width}, 9), sums_again = sums;
    const HostTensor before = sums;
    apart.backward_on(device(), shape, c.accumulate);
    {
      Mirror mirror(device());
      ops::dropout(stream(),
                   dropout(c, mirror.in(apart.d_sum, c.skew), mirror.io(expected, c.skew), mirror));
      mirror.fetch();
    }
    for (NormTensors* t : {&fused, &again}) {
      const bool first = t == &fused;
      Mirror mirror(device());
      ops::NormBackward b = t->backward(c.kind, c.accumulate);
      b.d_out = mirror.in(t->d_out, c.skew), b.sum = mirror.in(t->input(), c.skew);
      b.weight = mirror.in(t->weight, c.skew), b.rstd = mirror.in(t->rstd);
      if (c.kind == Norm::layernorm) b.mean = mirror.in(t->mean);
      b.d_sum = mirror.io(t->d_sum, c.skew), b.d_weight = mirror.io(t->d_weight);
      b.d_bias = mirror.io(t->d_bias), b.workspace = {};
      const TensorView out = mirror.io(first ? d_delta : second, c.skew);
      const std::int64_t bytes = ops::dropped_norm_workspace(stream(), c.rows, c.width);
      ops::norm_backward(stream(), b,
                         {.dropout = dropout(c, b.d_sum, out, mirror),
                          .d_bias = c.bias ? mirror.io(first ? sums : sums_again) : TensorView{},
                          .workspace = mirror.workspace(bytes)});
      mirror.fetch();
    }
    EXPECT_TRUE(fused.d_sum.same_bits(apart.d_sum)) << "d_sum";
    EXPECT_TRUE(d_delta.same_bits(expected)) << "d_delta";
    EXPECT_TRUE(second.same_bits(d_delta) && sums_again.same_bits(sums) &&
                again.d_weight.same_bits(fused.d_weight))
        << "not deterministic";
    // Sums over rows in f32: at most `rows` additions and one to the total, each of which rounds a
    // sum of terms below `most`. The two kernels may divide the rows differently.
    const double u = unit_roundoff(DType::f32), terms = static_cast<double>(c.rows) + 1;
    const double most =
        std::max({5.0, largest_magnitude(expected),
                  2 * largest_magnitude(start.d_out) * condition(start.exact(), c.width)});
    const double error = terms * u * most * terms;
    expect_close(fused.d_weight, apart.d_weight.to(DType::f64), u, 2 * error, "d_weight");
    if (!c.bias) return;
    expect_close(fused.d_bias, apart.d_bias.to(DType::f64), u, 2 * error, "d_bias");
    HostTensor exact = before.to(DType::f64);
    ref::bias_gradient(expected.to(DType::f64), exact);
    expect_close(sums, exact, u, error, "the branch's bias");
  }

  void check(const DroppedCase& c) {
    SCOPED_TRACE(fmt::format("{} [{}, {}] p {} accumulate {} ids {} skew {}", name_of(c.dtype),
                             c.rows, c.width, c.probability, c.accumulate, c.ids, c.skew));
    forward(c);
    backward(c);
  }
};

TEST_F(CudaNormDropout, EveryDistributionOfRows) {
  for (const DType dtype : kGpuTypes)
    for (const auto& [rows, width] : {std::pair{36, 8},
                                      {68, 136},
                                      {36, 256},
                                      {68, 264},
                                      {36, 512},
                                      {68, 520},
                                      {68, 1024},
                                      {20, 1040},
                                      {8, 4096}})
      check({dtype, rows, width});
}

TEST_F(CudaNormDropout, FewRowsAndManyBlocks) {
  check({DType::bf16, 4, 512});
  check({DType::bf16, 16 * 7 + 4, 24});
}

TEST_F(CudaNormDropout, KindsSamplesAndProbabilities) {
  for (const Norm kind : {Norm::layernorm, Norm::rmsnorm})
    for (const bool accumulate : {false, true})
      check({DType::bf16, 68, 40, kind, 0.4, accumulate, accumulate, kind == Norm::layernorm});
  check({DType::bf16, 68, 40, Norm::layernorm, 0.0});
}

TEST_F(CudaNormDropout, RowsThatAreNotPacksOrTooWideRunApart) {
  for (const DType dtype : kGpuTypes) check({dtype, 8, 7});
  check({DType::bf16, 8, 64, Norm::layernorm, 0.4, true, false, true, 1});
  check({DType::bf16, 8, 4104});
}

TEST_F(CudaNormDropout, RowsTsan) {
  check({DType::bf16, 8, 40});
  check({DType::bf16, 4, 1040});
}

TEST_F(CudaNormDropout, ThePlanCountsNoSecondReading) {
  NullDevice planned(DeviceKind::cuda);
  WorkCounter counter;
  const Stream counted(planned, &counter);
  const Buffer memory(planned, std::size_t{1} << 20);
  const auto view = [&](DType type, const Shape& shape) {
    return TensorView{memory.data(), type, shape};
  };
  const TensorView x = view(DType::bf16, {64, 32}), weight = view(DType::bf16, {32}),
                   statistic = view(DType::f32, {64});
  ops::NormForward f;
  f.kind = Norm::rmsnorm, f.residual = f.delta = f.sum = f.out = x, f.weight = weight;
  f.rstd = statistic;
  ops::norm_forward(counted, f, dropout_arguments(x, x, 0.4));
  EXPECT_EQ(counter.bytes, 4 * 64 * 32 * 2 + 32 * 2 + 64 * 4);
}

}  // namespace
}  // namespace choir::test
