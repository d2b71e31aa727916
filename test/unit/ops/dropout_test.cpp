#include "test/support/dropout_case.hpp"
#include "test/support/gradcheck.hpp"

namespace choir::test {
namespace {

TEST(Dropout, DropsExactlyWhatTheReferenceDrops) {
  CpuDevice device;
  for (const DType dtype : kElementTypes)
    for (const std::int64_t width : {1, 3, 4, 7, 16, 63, 64, 65, 128, 130, 768, 1000})
      for (const double probability : {0.0, 0.1, 0.5, 0.9})
        check_dropout(device, dtype, width, probability);
}

TEST(Dropout, MaskBelongsToTheGlobalSampleWhateverTheSplit) {
  CpuBench cpu;
  const std::int64_t samples = 6, tokens = 4, width = 70;
  const HostTensor ones = HostTensor::filled(DType::f32, {samples * tokens, width}, 1);
  HostTensor whole(DType::f32, ones.shape());
  ops::dropout(cpu.stream, dropout_arguments(ones, whole, 0.4));
  for (const std::int64_t part : {1, 2, 3}) {
    HostTensor split(DType::f32, ones.shape());
    for (std::int64_t s = 0; s < samples; s += part) {
      auto args = dropout_arguments(ones.view().slice(s * tokens, part * tokens),
                                    split.view().slice(s * tokens, part * tokens), 0.4);
      args.first_sample += s;
      ops::dropout(cpu.stream, args);
    }
    EXPECT_TRUE(split.same_bits(whole)) << part << " samples at a time";
  }
  HostTensor one_token(DType::f32, {1, width});  // generation, position by position
  auto args = dropout_arguments(ones.view().slice(0, 1), one_token, 0.4);
  args.first_sample += 2, args.first_position += 3, args.tokens = 1;
  ops::dropout(cpu.stream, args);
  for (std::int64_t c = 0; c < width; ++c)
    ASSERT_EQ(one_token[c], whole[(2 * tokens + 3) * width + c]);
  args.first_sample += 1;
  HostTensor other(DType::f32, {1, width});
  args.out = other;
  ops::dropout(cpu.stream, args);
  EXPECT_FALSE(other.same_bits(one_token));
}

TEST(Dropout, PartOfTheSampleIndexMayComeFromTheDevice) {
  CpuBench cpu;
  const HostTensor in = HostTensor::normal(DType::f32, {8, 70}, 1);
  HostTensor told(DType::f32, in.shape()), read(DType::f32, in.shape()),
      other(DType::f32, in.shape());
  ops::dropout(cpu.stream, dropout_arguments(in, told, 0.4));
  std::int64_t on_device = (std::int64_t{1} << 33) + 2;
  auto args = dropout_arguments(in, read, 0.4);
  args.first_sample = 3, args.first_sample_on_device = &on_device;
  ops::dropout(cpu.stream, args);
  EXPECT_TRUE(read.same_bits(told));
  ++on_device;  // the same arguments, another sample
  args.out = other;
  ops::dropout(cpu.stream, args);
  EXPECT_FALSE(other.same_bits(told));
  const HostTensor in64 = in.to(DType::f64);
  HostTensor exact(DType::f64, in.shape());
  args.in = in64, args.out = exact;
  ref::dropout(args);
  for (std::int64_t i = 0; i < in.count(); ++i) ASSERT_EQ(exact[i] == 0, other[i] == 0) << i;
}

TEST(Dropout, KeepsTheRateAndIsUncorrelated) {
  CpuBench cpu;
  const std::int64_t n = 400 * 500;
  const HostTensor ones = HostTensor::filled(DType::f32, {400, 500}, 1);
  HostTensor out(DType::f32, ones.shape());
  for (const double p : {0.1, 0.5}) {
    auto args = dropout_arguments(ones, out, p);
    ops::dropout(cpu.stream, args);
    double kept = 0, both = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      kept += out[i] != 0;
      both += out[i] != 0 && out[(i + 1) % n] != 0;
    }
    const double q = 1 - p, count = static_cast<double>(n);
    EXPECT_NEAR(kept / count, q, 5 * std::sqrt(p * q / count));  // five standard deviations
    EXPECT_NEAR(both / count, q * q, 5 * std::sqrt(3.0 * q * q / count));
  }
}

TEST(Dropout, BackwardIsTheSameLinearMap) {
  CpuBench cpu;
  const HostTensor x = HostTensor::normal(DType::f64, {8, 33}, 1),
                   w = HostTensor::normal(DType::f64, {8, 33}, 2);
  HostTensor y(DType::f64, x.shape()), d(DType::f64, x.shape());
  ops::dropout(cpu.stream, dropout_arguments(x, y, 0.3));
  ops::dropout(cpu.stream, dropout_arguments(w, d, 0.3));
  EXPECT_NEAR(dot(y, w), dot(x, d), 1e-12);
}

TEST(Dropout, RefusesAProbabilityThatIsNone) {
  CpuBench cpu;
  const HostTensor x(DType::f32, {4, 4});
  for (const double p : {-0.1, 1.0, std::nan("")})
    EXPECT_THROW(ops::dropout(cpu.stream, dropout_arguments(x, x, p)), Error);
}

}  // namespace
}  // namespace choir::test
