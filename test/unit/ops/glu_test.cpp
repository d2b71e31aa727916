#include "test/support/glu_case.hpp"

namespace choir::test {
namespace {

TEST(Glu, MatchesTheReferenceForRaggedShapesAndAllTypes) {
  CpuDevice device;
  for (const DType dtype : kElementTypes)
    for (const std::int64_t width : {1, 3, 16, 17, 65, 1000})
      for (const bool masked : {false, true})
        GluCase{dtype, 5, 9, width, masked, 0, dtype == DType::bf16 ? 6e-6 : 0}.check(device);
}

}  // namespace
}  // namespace choir::test
