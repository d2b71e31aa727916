#include "test/support/running_statistics_case.hpp"

#include "kernels/norm/batch_norm.hpp"

namespace choir::test {
namespace {

TEST(RunningStatistics, MatchTheReference) {
  CpuDevice device;
  for (const DType dtype : {DType::f64, DType::f32})
    for (const std::int64_t micro_batches : {0, 1, 2, 9})
      for (const std::int64_t width : {1, 7, 64, 131}) {
        check_running_statistics(device, {dtype, micro_batches, width});
        for (const bool applied : {true, false})
          check_running_statistics(device, {dtype, micro_batches, width, true, applied});
      }
}

/// Results of PyTorch's BatchNorm1d (2.x, fp64, eps 1e-5, momentum 0.1) for the counted frames of
/// micro-batch m, one after another: x[r][c] = sin(0.7 (3 r + c) + m)(1 + c) + c/2 + m.
struct GoldenFrames {
  std::vector<std::int32_t> lengths;  ///< those of utterances of 4 frames
  std::int64_t first, last;           ///< counted rows
  double first_y[3], last_y[3];
};
const GoldenFrames kGolden[] = {{{3, 1},
                                 0,
                                 4,
                                 {-0.195076601595714, 0.45121731034091, -3.10969099878773},
                                 {0.996899082787426, 0.191689271317843, 1.1735053793599}},
                                {{0, 4, 2},
                                 4,
                                 9,
                                 {0.131004486873197, -0.443879930340791, 3.07844031144605},
                                 {1.32099712428428, 0.696634025245046, -1.51052861492674}}};
const double kRunningMean[] = {0.119321734145004, 0.209439702318536, 0.265167078080126};
const double kRunningVariance[] = {0.931883622632099, 1.23714344029484, 1.77766400783438};
/// Rows 0 and 5 of m = 2, normalised with these statistics.
const double kEvaluated[2][3] = {{2.99012914594271, 1.41391422970152, -2.6524005917034},
                                 {1.97948742187832, 1.56198353204159, -8.17653053282496}};

HostTensor golden_rows(std::int64_t rows, double m) {
  HostTensor x(DType::f64, {rows, 3});
  for (std::int64_t i = 0; i < 3 * rows; ++i) {
    const auto c = static_cast<double>(i % 3);
    x.set(i, std::sin(0.7 * static_cast<double>(i) + m) * (1 + c) + 0.5 * c + m);
  }
  return x;
}

TEST(RunningStatistics, AreThoseOfPyTorch) {
  constexpr double kDigits = 1e-13;  // 15 digits are printed, of numbers below 10
  CpuDevice device;
  const Stream stream(device);
  HostTensor weight(DType::f64, {3}), bias(DType::f64, {3}), mean(DType::f64, {3}),
      variance(DType::f64, {3}), own_mean(DType::f64, {3}), rstd(DType::f64, {3});
  const double weights[] = {1, 0.5, -2}, biases[] = {0.1, 0, 0.3};
  for (int c = 0; c < 3; ++c)
    weight.set(c, weights[c]), bias.set(c, biases[c]), mean.set(c, 0), variance.set(c, 1);
  HostTensor records(DType::f64, {2, 2, 3}), frames(DType::f64, {2});
  ops::BatchNorm call{.x = {}, .y = {}, .weight = weight, .bias = bias, .mean = own_mean};
  call.rstd = rstd, call.tokens = 4;
  for (std::int64_t m = 0; m < 2; ++m) {
    const GoldenFrames& golden = kGolden[m];
    const auto rows = static_cast<std::int64_t>(4 * golden.lengths.size());
    const HostTensor x = golden_rows(rows, static_cast<double>(m));
    HostTensor y(DType::f64, {rows, 3});
    std::vector<std::byte> workspace(
        static_cast<std::size_t>(ops::batch_norm_workspace(stream, rows, 3)));
    call.x = x, call.y = y, call.lengths = golden.lengths.data();
    const TensorView record = TensorView(records).slice(m, 1).reshaped({2, 3});
    call.running_mean = record.slice(0, 1), call.running_variance = record.slice(1, 1);
    call.frames = TensorView(frames).slice(m, 1);
    call.workspace = {workspace.data(), DType::u8, {static_cast<std::int64_t>(workspace.size())}};
    ops::batch_norm_forward(stream, call);
    for (std::int64_t c = 0; c < 3; ++c) {
      EXPECT_NEAR(y[3 * golden.first + c], golden.first_y[c], kDigits) << m << " " << c;
      EXPECT_NEAR(y[3 * golden.last + c], golden.last_y[c], kDigits) << m << " " << c;
    }
  }
  EXPECT_EQ(frames[0], 4);
  EXPECT_EQ(frames[1], 6);
  ops::update_running_statistics(
      stream, {.records = records, .frames = frames, .mean = mean, .variance = variance});
  for (std::int64_t c = 0; c < 3; ++c) {
    EXPECT_NEAR(mean[c], kRunningMean[c], kDigits) << c;
    EXPECT_NEAR(variance[c], kRunningVariance[c], kDigits) << c;
  }
  const HostTensor x = golden_rows(8, 2);
  HostTensor y(DType::f64, {8, 3});
  call.x = x, call.y = y, call.lengths = nullptr, call.frames = {}, call.training = false;
  call.running_mean = mean, call.running_variance = variance;
  ops::batch_norm_forward(stream, call);
  for (std::int64_t c = 0; c < 3; ++c) {
    EXPECT_NEAR(y[c], kEvaluated[0][c], kDigits) << c;
    EXPECT_NEAR(y[15 + c], kEvaluated[1][c], kDigits) << c;
  }
}

}  // namespace
}  // namespace choir::test
