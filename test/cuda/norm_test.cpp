#include "test/support/norm_case.hpp"

#include "src/device/null_device.hpp"
#include "test/cuda/cuda_fixture.hpp"

namespace choir::test {
namespace {

using ops::Norm;

class CudaNorm : public CudaTest {};

TEST_F(CudaNorm, AWarpPerRow) {
  for (const DType dtype : kGpuTypes)
    for (const Norm kind : {Norm::layernorm, Norm::rmsnorm})
      for (const auto& [rows, width] :
           {std::pair{37, 8}, {37, 136}, {5, 256}, {66, 264}, {66, 1024}})
        for (const bool delta : {false, true})
          check_norm(device(),
                     {kind, dtype, rows, width, delta, kind == Norm::layernorm && !delta});
}

TEST_F(CudaNorm, ABlockPerRowOfFew) {
  for (const DType dtype : kGpuTypes)
    for (const Norm kind : {Norm::layernorm, Norm::rmsnorm})
      for (const auto& [rows, width] : {std::pair{5, 520}, {1, 1024}, {64, 264}, {2, 4096}})
        for (const bool delta : {false, true})
          check_norm(device(),
                     {kind, dtype, rows, width, delta, kind == Norm::layernorm && !delta});
}

TEST_F(CudaNorm, RaggedWidths) {
  for (const DType dtype : kGpuTypes)
    for (const Norm kind : {Norm::layernorm, Norm::rmsnorm})
      for (const std::int64_t width : {1, 3, 31, 65, 1023})
        check_norm(device(), {kind, dtype, 5, width, width % 2 == 1, kind == Norm::layernorm});
}

TEST_F(CudaNorm, AddsAnOffsetToTheWeight) {
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t width : {65, 136, 1040, 4104})
      check_norm(device(), {Norm::rmsnorm, dtype, 66, width, width == 136, false, 0, 1});
}

TEST_F(CudaNorm, AnyAlignment) {
  for (const DType dtype : kGpuTypes)
    for (const int skew : {1, 2, 4})
      check_norm(device(), {Norm::layernorm, dtype, 3, 128, true, true, skew});
}

TEST_F(CudaNorm, ABlockPerRow) {
  for (const DType dtype : kGpuTypes) {
    check_norm(device(), {Norm::layernorm, dtype, 66, 1032, true, true});
    check_norm(device(), {Norm::rmsnorm, dtype, 2, 4104, false, false});
    check_norm(device(), {Norm::layernorm, dtype, 2, 8200, false, true});
  }
}

TEST_F(CudaNorm, RowsTooWideForRegisters) {
  check_norm(device(), {Norm::layernorm, DType::bf16, 2, 16400, true, true});
  check_norm(device(), {Norm::rmsnorm, DType::f32, 9, 1025, false, false});
}

TEST_F(CudaNorm, SumMayOverwriteResidualOrDelta) {
  for (const std::int64_t width : {64, 65, 1040})
    for (const bool over_residual : {true, false}) {
      const NormCase c{Norm::layernorm, DType::bf16, 3, width, true, true};
      NormTensors apart(c), inside(c);
      apart.forward_on(device(), c);
      Mirror mirror(device());
      ops::NormForward f;
      f.residual = mirror.io(inside.residual), f.delta = mirror.io(inside.delta);
      f.sum = over_residual ? f.residual : f.delta;
      f.weight = mirror.in(inside.weight), f.bias = mirror.in(inside.bias);
      f.out = mirror.io(inside.out), f.mean = mirror.io(inside.mean);
      f.rstd = mirror.io(inside.rstd);
      ops::norm_forward(stream(), f);
      mirror.fetch();
      EXPECT_TRUE(apart.sum.same_bits(over_residual ? inside.residual : inside.delta)) << width;
      EXPECT_TRUE(apart.out.same_bits(inside.out)) << width;
    }
}

TEST_F(CudaNorm, ManyRowsInManyBlocks) {
  // More rows than fit one block; the last block is ragged.
  check_norm(device(), {Norm::layernorm, DType::bf16, 16 * 7 + 3, 24, false, true});
}

TEST_F(CudaNorm, WarpRowsTsan) {
  check_norm(device(), {Norm::layernorm, DType::bf16, 6, 40, true, true});
}

TEST_F(CudaNorm, BlockRowsTsan) {
  check_norm(device(), {Norm::layernorm, DType::bf16, 3, 1032, false, true});
}

TEST_F(CudaNorm, LongRowsTsan) {
  check_norm(device(), {Norm::layernorm, DType::bf16, 2, 1025, true, true});
}

TEST_F(CudaNorm, TheWorkspaceIsPlannedWithoutTheDevice) {
  NullDevice planned(DeviceKind::cuda);
  for (const std::int64_t rows : {1, 16, 17, 100000})
    for (const std::int64_t width : {1, 768, 4096, 20000}) {
      const std::int64_t bytes = ops::norm_workspace(Stream(planned), rows, width);
      EXPECT_EQ(bytes, ops::norm_workspace(stream(), rows, width));
      EXPECT_LE(bytes, 528 * 2 * 4 * (width + 31));  // does not grow with the rows
    }
}

TEST_F(CudaNorm, RefusesDoublePrecision) {
  NormTensors t({Norm::layernorm, DType::f64, 2, 8, false, true});
  try {
    ops::norm_forward(stream(), t.forward(Norm::layernorm));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::deck);
    EXPECT_NE(std::string(error.what()).find("f64"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace choir::test
