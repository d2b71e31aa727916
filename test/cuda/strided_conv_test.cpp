#include "test/support/strided_conv_case.hpp"

#include "test/cuda/cuda_fixture.hpp"

namespace choir::test {
namespace {

class CudaStridedConv : public CudaTest {};

TEST_F(CudaStridedConv, MatchesTheReferenceForRaggedShapes) {
  for (const DType dtype : kGpuTypes)
    for (const bool causal : {false, true})
      for (const std::int64_t channels : {5, 8, 40})
        for (const std::int64_t frames : {1, 2, 9})
          for (const std::int64_t frequencies : {1, 4, 11})
            for (const bool wide : {false, true})
              check_strided_conv(device(), {dtype, 4, frames, frequencies, wide ? channels : 1,
                                            channels, causal, frames != 2, frequencies != 4});
}

TEST_F(CudaStridedConv, AnyAlignmentAndSeveralTiles) {
  for (const DType dtype : kGpuTypes)
    for (const bool wide : {false, true}) {
      check_strided_conv(device(), {dtype, 2, 5, 6, wide ? 16 : 1, 16, false, true, true, 1});
      check_strided_conv(device(), {dtype, 2, 5, 6, wide ? 264 : 1, 264, true, true, true});
    }
}

// One kernel computes all gradients, another d_x alone.
TEST_F(CudaStridedConv, TheGradientOfTheInputHasTheBitsOfItsOwnKernel) {
  for (const DType dtype : kGpuTypes)
    for (const bool causal : {false, true})
      for (const std::int64_t channels : {8, 70}) {
        const StridedConvCase c{dtype, 4, 9, 11, channels, channels, causal, true};
        StridedConvTensors t(c);
        HostTensor alone = t.d_x;
        t.y = HostTensor::normal(dtype, t.y_shape, 7);
        Mirror mirror(device());
        ops::StridedConvBackward b = t.backward(stream(), c);
        b.x = mirror.in(t.x), b.weight = mirror.in(t.weight), b.y = mirror.in(t.y);
        b.d_y = mirror.in(t.d_y), b.d_x = mirror.io(t.d_x);
        b.in_lengths = mirrored_lengths(mirror, t.in_lengths);
        b.out_lengths = mirrored_lengths(mirror, t.out_lengths);
        b.d_weight = mirror.io(t.d_weight), b.d_bias = mirror.io(t.d_bias);
        b.workspace = mirror.workspace(ops::strided_conv_workspace(stream(), t.y_shape));
        ops::strided_conv_backward(stream(), b);
        b.d_x = mirror.io(alone), b.d_weight = b.d_bias = {};
        ops::strided_conv_backward(stream(), b);
        mirror.fetch();
        EXPECT_TRUE(t.d_x.same_bits(alone)) << name_of(dtype) << channels << causal;
      }
}

TEST_F(CudaStridedConv, AllTsan) {
  check_strided_conv(device(), {DType::bf16, 2, 9, 5, 66, 66, false, true});
  check_strided_conv(device(), {DType::bf16, 2, 5, 4, 1, 8, true, true});
}

}  // namespace
}  // namespace choir::test
