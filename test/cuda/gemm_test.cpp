#include "kernels/gemm/gemm.hpp"

#include "choir/ops/activation.hpp"
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

/// The error of activation.cu's short forms, which 16-bit products meet when not fused.
double approximation(DType type) {
  return size_of(type) == 2 ? 1e-5 : 0;
}

/// The error of PTX's tanh.approx.f32, which a library may use for 16 bits. f32 fuses nothing.
double tanh_error(DType type) {
  return size_of(type) == 2 ? 0x1p-11 : 0;
}

TEST_F(CudaGemm, EpiloguesInOneCall) {
  for (const DType type : kGpuTypes)
    check({17, 24, 40, type, approximation(type), tanh_error(type)});
}

TEST_F(CudaGemm, EpiloguesOneOpAfterTheOther) {
  // No library keeps a pre-activation whose rows are no multiple of 8 elements. If none is kept,
  // there is one call nevertheless.
  for (const DType type : kGpuTypes)
    check({9, 5, 7, type, approximation(type), tanh_error(type), size_of(type) == 2});
}

// The kernel of ours: more tiles than multiprocessors, rings that are reused, rows and columns that
// end within a tile; and products that it does not take.
TEST_F(CudaGemm, ExactEpilogues) {
  for (const DType type : kGpuTypes) {
    const auto exact = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
      check({.m = m,
             .n = n,
             .k = k,
             .dtype = type,
             .approximation = approximation(type),
             .exact = true});
    };
    exact(17, 24, 40), exact(9, 5, 7);
    if (type == DType::bf16) exact(200, 264, 392);
  }
}

/// C and the pre-activation have the bits of separate ops on the same sums, here of one product
/// each, and every tile has the same bits whichever block computes it.
TEST_F(CudaGemm, ExactEpiloguesRepeatBitwise) {
  const DType type = DType::bf16;
  const std::int64_t m = 140, n = 136, k = 72;
  const HostTensor x = HostTensor::normal(type, {m, k}, 1), w = HostTensor::normal(type, {n, k}, 2),
                   back = HostTensor::normal(type, {k, n}, 3);
  HostTensor before(type, {m, n}), y = before, d = before, y2 = before, d2 = before, again = before;
  Mirror mirror(device());
  const TensorView a = mirror.in(x), b = mirror.in(w), b2 = mirror.in(back);
  const TensorView kept = mirror.io(before), first = mirror.io(y), second = mirror.io(again);
  const TensorView d_first = mirror.io(d), d_second = mirror.io(d2);
  using enum ops::GemmEpilogue;
  ops::gemm(stream(), a, b, first, {.transpose_b = true, .epilogue = gelu, .pre_activation = kept});
  ops::gemm(stream(), a, b, second, {.transpose_b = true, .epilogue = gelu});
  for (const TensorView& to : {d_first, d_second})
    ops::gemm(stream(), a, b2, to, {.epilogue = gelu_gradient, .pre_activation = kept});
  ops::activation_forward(stream(), ops::Activation::gelu, kept, mirror.io(y2));
  mirror.fetch();
  EXPECT_TRUE(y.same_bits(again) && d.same_bits(d2));
  EXPECT_TRUE(y.same_bits(y2));
}

/// For the thread sanitizer: two warp groups that take turns, and both directions.
TEST_F(CudaGemm, ExactEpiloguesTsan) {
  check({.m = 20,
         .n = 520,
         .k = 72,
         .dtype = DType::bf16,
         .approximation = approximation(DType::bf16),
         .exact = true});
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
        // The bounds are those of gemm_test.cpp: sums of k products of unit normals, which may be
        // rounded before they are added to the old contents, and the rounding of the result.
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

// Products of generation: rows of whole packs are computed by a kernel of ours, other counts, and
// one row more, by the library. Long rows are shared by two and four warps.
TEST_F(CudaGemm, FewRowsReadTheWeightOnce) {
  for (const DType type : kGpuTypes)
    for (const auto& [n, k] :
         {std::pair{70, 8}, {33, 264}, {6, 61}, {18, 1032}, {9, 2056}, {5, 4120}, {17, 1048}})
      for (const std::int64_t m : {1, 3, 4, 5, 7, 8, 9})
        for (const bool accumulate : {false, true}) {
          const bool wide = size_of(type) == 2 && accumulate;  // as gradients are
          const HostTensor a = HostTensor::normal(type, {m, k}, 1);
          const HostTensor b = HostTensor::normal(type, {n, k}, 2);
          const HostTensor bias = HostTensor::normal(type, {n}, 4);
          HostTensor c = HostTensor::normal(wide ? DType::f32 : type, {m, n}, 3);
          HostTensor exact = c.to(DType::f64);
          const HostTensor started = exact;
          Mirror mirror(device());
          ops::gemm(stream(), mirror.in(a), mirror.in(b), mirror.io(c),
                    {.transpose_b = true,
                     .accumulate = accumulate,
                     .reads_b_once = true,
                     .bias = accumulate ? TensorView{} : mirror.in(bias)});
          mirror.fetch();
          const HostTensor a64 = a.to(DType::f64), b64 = b.to(DType::f64);
          const HostTensor bias64 = bias.to(DType::f64);
          ref::gemm({m, n, k, false, true, accumulate, DType::f64, DType::f64, a64.data(),
                     b64.data(), accumulate ? nullptr : bias64.data(), exact.data()});
          const double store = wide ? 0x1p-24 : 1.01 * operation_roundoff(type);
          for (std::int64_t i = 0; i < c.count(); ++i) {
            const double product = std::fabs(exact[i] - (accumulate ? started[i] : 0));
            EXPECT_NEAR(c[i], exact[i],
                        store * (product + std::fabs(exact[i])) +
                            4 * 0x1p-24 * (static_cast<double>(k) + 2))
                << name_of(type) << " " << m << " x " << n << " x " << k << ", " << i;
          }
          EXPECT_TRUE(c.guard_intact());
        }
}

TEST_F(CudaGemm, FewRowsAreEachAsIfAlone) {
  constexpr std::int64_t kRows = 4, kWidth = 10, kInner = 1288;
  for (const DType type : kGpuTypes) {
    const HostTensor x = HostTensor::normal(type, {kRows, kInner}, 1),
                     w = HostTensor::normal(type, {kWidth, kInner}, 2);
    HostTensor all(type, {kRows, kWidth}), alone(type, {kRows, kWidth});
    Mirror mirror(device());
    const TensorView rows = mirror.in(x), weight = mirror.in(w), one = mirror.io(alone);
    const ops::GemmOptions options{.transpose_b = true, .reads_b_once = true};
    ops::gemm(stream(), rows, weight, mirror.io(all), options);
    for (std::int64_t r = 0; r < kRows; ++r)
      ops::gemm(stream(), rows.slice(r, 1), weight, one.slice(r, 1), options);
    mirror.fetch();
    EXPECT_TRUE(all.same_bits(alone)) << name_of(type);
  }
}

TEST_F(CudaGemm, FewRowsTsan) {
  const HostTensor x = HostTensor::normal(DType::bf16, {2, 2056}, 1);
  const HostTensor w = HostTensor::normal(DType::bf16, {3, 2056}, 2);
  HostTensor y(DType::bf16, {2, 3});
  Mirror mirror(device());
  ops::gemm(stream(), mirror.in(x), mirror.in(w), mirror.io(y),
            {.transpose_b = true, .reads_b_once = true});
  mirror.fetch();
}

TEST_F(CudaGemm, EightRowsTsan) {
  const HostTensor x = HostTensor::normal(DType::bf16, {7, 2056}, 1);
  const HostTensor w = HostTensor::normal(DType::bf16, {18, 2056}, 2);
  HostTensor y(DType::bf16, {7, 18});
  Mirror mirror(device());
  ops::gemm(stream(), mirror.in(x), mirror.in(w), mirror.io(y),
            {.transpose_b = true, .reads_b_once = true});
  mirror.fetch();
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
