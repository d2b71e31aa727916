#include "test/support/running_statistics_case.hpp"

#include "test/cuda/cuda_fixture.hpp"

namespace choir::test {
namespace {

class CudaRunningStatistics : public CudaTest {};

TEST_F(CudaRunningStatistics, MatchTheReference) {
  for (const std::int64_t micro_batches : {0, 1, 2, 9})
    for (const std::int64_t width : {1, 7, 64, 131}) {
      check_running_statistics(device(), {DType::f32, micro_batches, width});
      for (const bool applied : {true, false})
        check_running_statistics(device(), {DType::f32, micro_batches, width, true, applied});
    }
}

}  // namespace
}  // namespace choir::test
