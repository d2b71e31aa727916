#include "test/support/splice_case.hpp"

#include "test/cuda/cuda_fixture.hpp"

namespace choir::test {
namespace {

class CudaSplice : public CudaTest {};

TEST_F(CudaSplice, MatchesTheReference) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const std::int64_t width : {1, 7, 16, 64})
      for (const int skew : {0, 1}) {
        SpliceCase{dtype, 40, 20, 0, 20, width, skew}.check(device());
        SpliceCase{dtype, 40, 20, 8, 6, width, skew}.check(device());
      }
  SpliceCase{DType::bf16, 3000, 1001, 0, 1001, 64}.check(device());
}

TEST_F(CudaSplice, IndexOutsideTheAudioIsNobodys) {
  HostTensor index = HostTensor::integers({4}, 1, 5);
  index.set(1, -2147483648.0), index.set(2, -3);
  const HostTensor audio = HostTensor::filled(DType::f32, {2, 4}, 1);
  HostTensor out = HostTensor::filled(DType::f32, {4, 4}, 5);
  Mirror mirror(device());
  ops::splice_forward(
      stream(), {.index = mirror.in(index), .audio = mirror.in(audio), .out = mirror.io(out)});
  mirror.fetch();
  for (std::int64_t i = 0; i < out.count(); ++i) ASSERT_EQ(out[i], 5.0) << i;
}

}  // namespace
}  // namespace choir::test
