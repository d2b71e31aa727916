#include "kernels/gemm/gemm.hpp"

#include "choir/core/error.hpp"
#include "kernels/gemm/gemm.hpp"
#include "src/device/cpu_device.hpp"
#include "test/support/op_test.hpp"
#include "test/support/threads_case.hpp"

namespace choir {
namespace {

// Batched products have the same bits as one product after another; all products share an operand
// of rank 2.
TEST(GemmBatched, HasTheBitsOfOneProductAfterAnother) {
  CpuDevice device;
  const Stream stream(device);
  constexpr std::int64_t kCount = 3, kRows = 5, kColumns = 7, kInner = 11;
  for (const DType type : {DType::f64, DType::f32, DType::bf16})
    for (int bits = 0; bits < 8; ++bits) {
      const bool turn_a = (bits & 1) != 0, turn_b = (bits & 2) != 0, shared = (bits & 4) != 0;
      const Shape of_a = turn_a ? Shape{kInner, kRows} : Shape{kRows, kInner},
                  of_b = turn_b ? Shape{kColumns, kInner} : Shape{kInner, kColumns};
      const HostTensor a = HostTensor::normal(type, {kCount * kRows * kInner}, 1),
                       b = HostTensor::normal(type, {kCount * kInner * kColumns}, 2),
                       start = HostTensor::normal(sum_dtype(type), {kCount * kRows * kColumns}, 3);
      const HostTensor all = start, alone = start;
      const auto matrices = [&](const HostTensor& x, const Shape& of) {
        return x.view().reshaped({kCount, of[0], of[1]});
      };
      const TensorView every_b = matrices(b, of_b);
      ops::gemm_batched(stream, matrices(a, of_a),
                        shared ? every_b.slice(0, 1).reshaped(of_b) : every_b,
                        matrices(all, {kRows, kColumns}),
                        {.transpose_a = turn_a, .transpose_b = turn_b, .accumulate = true});
      for (std::int64_t h = 0; h < kCount; ++h)
        ops::gemm(stream, matrices(a, of_a).slice(h, 1).reshaped(of_a),
                  every_b.slice(shared ? 0 : h, 1).reshaped(of_b),
                  matrices(alone, {kRows, kColumns}).slice(h, 1).reshaped({kRows, kColumns}),
                  {.transpose_a = turn_a, .transpose_b = turn_b, .accumulate = true});
      EXPECT_TRUE(all.same_bits(alone)) << name_of(type) << " " << bits;
      EXPECT_FALSE(all.same_bits(start));
    }
}

// Threads compute whole products if there are enough of them: 9 for at most 4 threads.
TEST(GemmBatched, EnoughProductsHaveTheSameBitsForAnyThreads) {
  constexpr std::int64_t kCount = 9, kRows = 96, kColumns = 80, kInner = 120;
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16})
    test::expect_same_bits_for_any_threads([&] {
      CpuDevice device;
      const HostTensor a = HostTensor::normal(type, {kCount, kRows, kInner}, 1),
                       b = HostTensor::normal(type, {kCount, kInner, kColumns}, 2);
      HostTensor c(sum_dtype(type), {kCount, kRows, kColumns});
      ops::gemm_batched(Stream(device), a.view(), b.view(), c.view());
      return std::vector<HostTensor>{std::move(c)};
    });
}

TEST(GemmBatched, RefusesWhatDoesNotFit) {
  CpuDevice device;
  const Stream stream(device);
  const HostTensor a(DType::f32, {2, 3, 4}), b(DType::f32, {2, 4, 5}), c(DType::f32, {2, 3, 5}),
      fewer(DType::f32, {1, 4, 5});
  EXPECT_NO_THROW(ops::gemm_batched(stream, a.view(), b.view(), c.view()));
  EXPECT_THROW(ops::gemm_batched(stream, a.view(), fewer.view(), c.view()), Error);
  EXPECT_THROW(ops::gemm_batched(stream, a.view(), b.view(), c.view(), {.transpose_b = true}),
               Error);
}

}  // namespace
}  // namespace choir
