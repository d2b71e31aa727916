#include "test/support/glu_case.hpp"

#include "test/cuda/cuda_fixture.hpp"

namespace choir::test {
namespace {

class CudaGlu : public CudaTest {};

TEST_F(CudaGlu, MatchesTheReferenceForRaggedShapes) {
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t width : {1, 7, 8, 136})
      for (const bool masked : {false, true})
        for (const int skew : {0, 1})  // kernels/activation/activation.cu on its short forms
          GluCase{dtype, 4, 9, width, masked, skew, size_of(dtype) == 2 ? 1e-5 : 0}.check(device());
}

}  // namespace
}  // namespace choir::test
