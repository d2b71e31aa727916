#include "test/cuda/cuda_fixture.hpp"
#include "test/support/waveform_case.hpp"

namespace choir::test {
namespace {

class CudaWaveform : public CudaTest {};

TEST_F(CudaWaveform, FramesMatchTheReference) {
  FramesCase{DType::f32, 4, 3, 2, 5, 16, 6}.check(device());
  FramesCase{DType::f32, 2, 2, 3, 7, 5, 3}.check(device());  // with gaps
  FramesCase{DType::f32, 2, 3, 8, 16, 51, 17}.check(device());
}

TEST_F(CudaWaveform, SpectraMatchTheReference) {
  for (const std::int64_t bins : {1, 33, 257}) SpectraCase{DType::f32, 7, bins}.check(device());
}

TEST_F(CudaWaveform, LossMatchesTheReference) {
  for (const std::int64_t width : {1, 33, 641})
    SpectralLossCase{DType::f32, 4, 7, width}.check(device());
}

}  // namespace
}  // namespace choir::test
