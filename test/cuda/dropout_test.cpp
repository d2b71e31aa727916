#include "test/support/dropout_case.hpp"

#include <array>

#include "test/cuda/cuda_fixture.hpp"

namespace choir::test {
namespace {

class CudaDropout : public CudaTest {};

TEST_F(CudaDropout, HasTheBitsOfTheCpu) {
  CpuDevice cpu;
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t width : {1, 3, 4, 8, 20, 65, 136, 768})
      for (const double probability : {0.0, 0.1, 0.9, 1 - 0x1p-32}) {
        const HostTensor here = check_dropout(device(), dtype, width, probability);
        EXPECT_TRUE(here.same_bits(check_dropout(cpu, dtype, width, probability)))
            << name_of(dtype) << " " << width << " " << probability;
      }
}

TEST_F(CudaDropout, AnyAlignment) {
  CpuDevice cpu;
  for (const DType dtype : kGpuTypes)
    for (const int skew : {1, 2})
      EXPECT_TRUE(check_dropout(device(), dtype, 64, 0.3, skew)
                      .same_bits(check_dropout(cpu, dtype, 64, 0.3)));
}

TEST_F(CudaDropout, AddsTheSampleThatLiesOnTheDevice) {
  const HostTensor ones = HostTensor::filled(DType::bf16, {12, 40}, 1);
  HostTensor direct(DType::bf16, ones.shape()), recorded(DType::bf16, ones.shape()),
      unmoved(DType::bf16, ones.shape());
  Mirror mirror(device());
  const TensorView in = mirror.in(ones);
  std::int64_t offset = (std::int64_t{1} << 35) + 3;
  auto args = dropout_arguments(in, mirror.io(direct), 0.4);
  args.first_sample += offset;
  ops::dropout(stream(), args);
  args = dropout_arguments(in, mirror.io(recorded), 0.4);
  args.first_sample_on_device = mirror.object(offset);
  ops::dropout(stream(), args);
  ops::dropout(stream(), dropout_arguments(in, mirror.io(unmoved), 0.4));
  mirror.fetch();
  EXPECT_TRUE(recorded.same_bits(direct));
  EXPECT_FALSE(recorded.same_bits(unmoved));
}

TEST_F(CudaDropout, SampleIdsHaveTheBitsOfTheCpu) {
  CpuBench cpu;
  std::array<std::int64_t, 3> ids{(std::int64_t{1} << 40) + 7, 0, 12345};
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t width : {7, 40}) {
      const HostTensor in = HostTensor::normal(dtype, {12, width}, 1);
      HostTensor out(dtype, in.shape()), here(dtype, in.shape());
      auto args = dropout_arguments(in, here, 0.4);
      args.sample_ids = ids.data(), args.factor = 0.5;
      ops::dropout(cpu.stream, args);
      Mirror mirror(device());
      args.in = mirror.in(in), args.out = mirror.io(out);
      args.sample_ids = mirror.object(ids)->data();
      ops::dropout(stream(), args);
      mirror.fetch();
      EXPECT_TRUE(out.same_bits(here)) << name_of(dtype) << " " << width;
    }
}

}  // namespace
}  // namespace choir::test
