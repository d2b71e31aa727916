#include "choir/ops/gemm.hpp"

#include "kernels/gemm/gemm.hpp"
#include "test/cuda/cuda_fixture.hpp"
#include "test/support/gemm_epilogue_case.hpp"

namespace choir::test {
namespace {

class CudaGemm : public CudaTest {
 protected:
  void check(const GemmEpilogueCase& c) {
    SCOPED_TRACE(c.name());
    c.check_gelu(device());
    c.check_gradient(device());
  }
};

/// The error of activation.cuh's short forms, which 16-bit products meet when not fused.
double approximation(DType type) {
  return size_of(type) == 2 ? 1e-5 : 0;
}

/// The error of PTX's tanh.approx.f32, which a library may take for 16 bits. f32 fuses nothing.
double tanh_error(DType type) {
  return size_of(type) == 2 ? 0x1p-11 : 0;
}

TEST_F(CudaGemm, EpiloguesInOneCall) {
  for (const DType type : kGpuTypes)
    check({17, 24, 40, type, approximation(type), tanh_error(type)});
}

TEST_F(CudaGemm, EpiloguesOneOpAfterTheOther) {
  // No library keeps a pre-activation whose rows are no multiple of 8 elements.
  // Where none is kept there is one call all the same.
  for (const DType type : kGpuTypes)
    check({9, 5, 7, type, approximation(type), tanh_error(type), size_of(type) == 2});
}

TEST_F(CudaGemm, ProductsOfALinearLayer) {
  for (const DType type : kGpuTypes)
    for (const bool accumulate : {false, true})
      for (const bool transpose : {false, true}) {
        const std::int64_t m = 9, n = 16, k = 24;
        const HostTensor a = HostTensor::normal(type, {m, k}, 1);
        const HostTensor b = HostTensor::normal(type, {transpose ? n : k, transpose ? k : n}, 2);
        HostTensor c = HostTensor::normal(type, {m, n}, 3);
        HostTensor exact = c.to(DType::f64);
        const HostTensor started = exact;
        Mirror mirror(device());
        ops::gemm(stream(), mirror.in(a), mirror.in(b), mirror.io(c),
                  {.transpose_b = transpose, .accumulate = accumulate});
        mirror.fetch();
        const HostTensor a64 = a.to(DType::f64), b64 = b.to(DType::f64);
        ref::gemm({m, n, k, false, transpose, accumulate, DType::f64, DType::f64, a64.data(),
                   b64.data(), nullptr, exact.data()});
        // As in gemm_test.cpp: sums of k products of unit normals, which may be rounded before they
        // meet what is there, and the result.
        const double store = 1.01 * operation_roundoff(type);
        for (std::int64_t i = 0; i < c.count(); ++i) {
          const double product = std::fabs(exact[i] - (accumulate ? started[i] : 0));
          EXPECT_NEAR(c[i], exact[i],
                      store * (product + std::fabs(exact[i])) + 4 * 0x1p-24 * (k + 2))
              << i;
        }
        EXPECT_TRUE(c.guard_intact());
      }
}

TEST_F(CudaGemm, RefusesF64) {
  const HostTensor x = HostTensor::normal(DType::f64, {4, 4}, 1);
  HostTensor y(DType::f64, {4, 4});
  Mirror mirror(device());
  const TensorView in = mirror.in(x), out = mirror.io(y);
  EXPECT_THROW(ops::gemm(stream(), in, in, out), DeckError);
}

}  // namespace
}  // namespace choir::test
