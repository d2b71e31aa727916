#include "src/device/null_device.hpp"
#include "test/support/glu_case.hpp"
#include "test/support/gradcheck.hpp"
#include "test/support/threads_case.hpp"

namespace choir::test {
namespace {

TEST(Glu, MatchesTheReferenceForRaggedShapesAndAllTypes) {
  CpuDevice device;
  for (const DType dtype : kElementTypes)
    for (const std::int64_t width : {1, 3, 16, 17, 65, 1000})
      for (const bool masked : {false, true})
        GluCase{dtype, 5, 9, width, masked, 0, dtype == DType::bf16 ? 6e-6 : 0}.check(device);
}

TEST(Glu, ValuesOfPyTorch) {  // torch.nn.functional.glu and its gradient for d_y = ((3i)%7-3)/2
  CpuBench cpu;
  const HostTensor x = lattice({2, 4}, 7, 13, 4), d_y = lattice({2, 2}, 3, 7, 2);
  HostTensor y(DType::f64, {2, 2}), d_x(DType::f64, {2, 4});
  ops::glu_forward(cpu.stream, x, y);
  ops::glu_backward(cpu.stream, x, d_y, d_x);
  const HostTensor want_y = tensor_of(
      {2, 2}, {-0.3340502082379633, 0.15561483280046365, -0.320821300824607, 0.5482939339725037});
  const HostTensor want_d_x =
      tensor_of({2, 4}, {-0.3340502082379633, 0, 0.3894857707331183, 0, 0.48123195123691054,
                         -0.36552928931500245, -0.3268424906427211, -0.0737294749655557});
  expect_close(y, want_y, 4e-16, 0, "y");
  expect_close(d_x, want_d_x, 8e-16, 0, "d_x");
}

TEST(Glu, GradientsAgreeWithFiniteDifferences) {
  CpuBench cpu;
  const HostTensor lengths = mixed_lengths(3, 4), d_y = HostTensor::normal(DType::f64, {12, 5}, 2);
  HostTensor x = HostTensor::normal(DType::f64, {12, 10}, 1), y(DType::f64, {12, 5}),
             d_x(DType::f64, {12, 10});
  const auto loss = [&] {
    ops::glu_forward(cpu.stream, x, y, host_lengths(lengths), 4);
    return dot(y, d_y);
  };
  ops::glu_backward(cpu.stream, x, d_y, d_x, host_lengths(lengths), 4);
  expect_gradient(d_x, x, loss, "glu");
  expect_directional(d_x, x, 3, loss, "glu");
}

TEST(Glu, PaddingChangesNoBit) {
  for (const DType dtype : kElementTypes) {
    CpuBench cpu;
    const std::int64_t tokens = 9, n = 5, width = 20;
    const HostTensor x = HostTensor::normal(dtype, {2, tokens, 2 * width}, 1),
                     d_y = HostTensor::normal(dtype, {2, tokens, width}, 2),
                     tight_x = first_frames(x, n), tight_d_y = first_frames(d_y, n);
    HostTensor lengths(DType::i32, {2}), y(dtype, {2, tokens, width}), d_x(dtype, x.shape()),
        tight_y(dtype, {2, n, width}), tight_d_x(dtype, tight_x.shape());
    lengths.set(0, n), lengths.set(1, n);
    ops::glu_forward(cpu.stream, x, y, host_lengths(lengths), tokens);
    ops::glu_backward(cpu.stream, x, d_y, d_x, host_lengths(lengths), tokens);
    ops::glu_forward(cpu.stream, tight_x, tight_y);
    ops::glu_backward(cpu.stream, tight_x, tight_d_y, tight_d_x);
    EXPECT_TRUE(first_frames(y, n).same_bits(tight_y));
    EXPECT_TRUE(first_frames(d_x, n).same_bits(tight_d_x));
  }
}

TEST(Glu, BitsDoNotDependOnThreads) {
  for (const DType dtype : {DType::f32, DType::bf16})
    expect_same_bits_for_any_threads([&] {
      CpuBench cpu;
      const HostTensor x = HostTensor::normal(dtype, {515, 2 * 65}, 1),
                       d_y = HostTensor::normal(dtype, {515, 65}, 2);
      HostTensor y(dtype, {515, 65}), d_x(dtype, x.shape());
      ops::glu_forward(cpu.stream, x, y);
      ops::glu_backward(cpu.stream, x, d_y, d_x);
      return std::vector{y, d_x};
    });
}

TEST(Glu, RefusesWhatDoesNotFitAndCountsOnTheNullDevice) {
  CpuBench cpu;
  const HostTensor x = HostTensor::normal(DType::f32, {6, 8}, 1), lengths = mixed_lengths(2, 3);
  HostTensor y(DType::f32, {6, 4}), d_x(DType::f32, {6, 8}), other(DType::bf16, {6, 4});
  EXPECT_THROW(ops::glu_forward(cpu.stream, x, x), Error);
  EXPECT_THROW(ops::glu_forward(cpu.stream, x, other), Error);
  EXPECT_THROW(ops::glu_forward(cpu.stream, x, y, host_lengths(lengths), 4), Error);
  EXPECT_THROW(ops::glu_backward(cpu.stream, x, y, y), Error);
  EXPECT_THROW(ops::mask_frames(cpu.stream, x, host_lengths(lengths), 4), Error);

  NullDevice nothing;
  WorkCounter work;
  const Stream stream(nothing, &work);
  ops::glu_forward(stream, x, y, host_lengths(lengths), 3);
  EXPECT_EQ(work.bytes, 4.0 * 6 * 12);
  work = {};
  ops::glu_backward(stream, x, y, d_x, host_lengths(lengths), 3);
  EXPECT_EQ(work.bytes, 4.0 * 6 * 20);
  work = {};
  ops::mask_frames(stream, x, host_lengths(lengths), 3);
  EXPECT_EQ(work.bytes, 4.0 * 6 * 8);
  EXPECT_TRUE(std::isnan(y[0])) << "the null device wrote";
}

}  // namespace
}  // namespace choir::test
