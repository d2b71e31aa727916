// gemm_cuda() by cuBLASLt, on the stand-in for the library: rows and columns, epilogues, plans.
#include <dlfcn.h>

#include <array>

#include "kernels/gemm/cuda/cublaslt.hpp"
#include "kernels/gemm/gemm.hpp"
#include "test/support/op_test.hpp"
#include "test/vendor/pretend_cuda.hpp"

namespace choir {
namespace {

using ops::GemmEpilogue;

struct Case {
  std::int64_t m = 24, n = 16, k = 12;
  DType in = DType::f32, out = DType::f32;
  bool transpose_a = false, transpose_b = false, accumulate = false, bias = false;
  GemmEpilogue epilogue = GemmEpilogue::none;
  bool pre_activation = false;
};

std::string name_of(const Case& c) {
  return fmt::format("{} x {} x {} {} into {} A^{} B^{} += {} bias {} epilogue {} aux {}", c.m, c.n,
                     c.k, name_of(c.in), name_of(c.out), c.transpose_a, c.transpose_b, c.accumulate,
                     c.bias, static_cast<int>(c.epilogue), c.pre_activation);
}

/// The tensors of one case. Copies have the same numbers.
struct Tensors {
  explicit Tensors(const Case& of)
      : c(of),
        a(HostTensor::normal(c.in, {c.transpose_a ? c.k : c.m, c.transpose_a ? c.m : c.k}, 1)),
        b(HostTensor::normal(c.in, {c.transpose_b ? c.n : c.k, c.transpose_b ? c.k : c.n}, 2)),
        bias(HostTensor::normal(c.in, {c.n}, 3)),
        result(HostTensor::normal(c.out, {c.m, c.n}, 4)),
        before(HostTensor::normal(c.out, {c.m, c.n}, 5)) {}
  Tensors exact() const {
    Tensors t = *this;
    t.c.in = t.c.out = DType::f64;
    for (HostTensor* x : {&t.a, &t.b, &t.bias, &t.result, &t.before}) *x = x->to(DType::f64);
    return t;
  }
  GemmArgs args() const {
    GemmArgs args{c.m,  c.n,   c.k,      c.transpose_a, c.transpose_b, c.accumulate,
                  c.in, c.out, a.data(), b.data(),      nullptr,       result.data()};
    args.epilogue = c.epilogue;
    if (c.bias) args.bias = bias.data();
    if (c.pre_activation) args.pre_activation = before.data();
    return args;
  }

  Case c;
  HostTensor a, b, bias, result, before;
};

/// The stand-in sums in f64 and rounds each result once, so it differs from the reference at most
/// by a rounding of its inputs (the kept pre-activation, which is not read again) and by the two
/// forms of the slope: 1e-9.
void compare(PretendCuda& device, const Case& c) {
  const std::string name = name_of(c);
  const Tensors t(c), exact = t.exact();
  const Stream stream(device);
  ASSERT_TRUE(gemm_cuda_offers(stream, t.args())) << name;
  gemm_cuda(stream, t.args());
  ref::gemm(exact.args());
  const double relative = 1.01 * operation_roundoff(c.out), absolute = 1e-7;
  expect_close(t.result, exact.result, relative, absolute, "C " + name);
  if (c.pre_activation) expect_close(t.before, exact.before, relative, absolute, "aux " + name);
  EXPECT_TRUE(t.result.guard_intact() && t.before.guard_intact()) << name;
}

constexpr std::array<std::pair<DType, DType>, 5> kTypes = {{{DType::f32, DType::f32},
                                                            {DType::bf16, DType::bf16},
                                                            {DType::bf16, DType::f32},
                                                            {DType::f16, DType::f16},
                                                            {DType::f16, DType::f32}}};

TEST(GemmCublasLt, EveryTranspositionTypeAndBias) {
  PretendCuda device;
  for (const auto& [in, out] : kTypes)
    for (const std::array<std::int64_t, 3>& size :
         {std::array<std::int64_t, 3>{1, 1, 1}, {7, 5, 3}, {24, 16, 40}})
      for (int bits = 0; bits < (in == out ? 16 : 8); ++bits)
        compare(device, {.m = size[0],
                         .n = size[1],
                         .k = size[2],
                         .in = in,
                         .out = out,
                         .transpose_a = (bits & 1) != 0,
                         .transpose_b = (bits & 2) != 0,
                         .accumulate = (bits & 4) != 0,
                         .bias = (bits & 8) != 0});
}

TEST(GemmCublasLt, EveryEpilogueOfALinearLayer) {
  PretendCuda device;
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (const bool bias : {false, true})
      for (const bool kept : {false, true})
        compare(device, {.in = type,
                         .out = type,
                         .transpose_b = true,
                         .bias = bias,
                         .epilogue = GemmEpilogue::gelu_tanh,
                         .pre_activation = kept});
    compare(device, {.in = type,
                     .out = type,
                     .epilogue = GemmEpilogue::gelu_tanh_gradient,
                     .pre_activation = true});
  }
}

/// All heads of a layer in one call: each has its A and C; B is the same for all or one per head.
TEST(GemmCublasLt, ManyMatricesInOneCall) {
  PretendCuda device;
  constexpr std::int64_t kCount = 3;
  for (const auto& [in, out] : kTypes)
    for (int bits = 0; bits < 16; ++bits) {
      const bool shared = (bits & 8) != 0;
      const Case c{.m = 6,
                   .n = bits % 2 == 0 ? 15 : 16,
                   .k = 5,
                   .in = in,
                   .out = out,
                   .transpose_a = (bits & 1) != 0,
                   .transpose_b = (bits & 2) != 0,
                   .accumulate = (bits & 4) != 0};
      const HostTensor a = HostTensor::normal(in, {kCount, c.m * c.k}, 1),
                       b = HostTensor::normal(in, {shared ? 1 : kCount, c.k * c.n}, 2),
                       result = HostTensor::normal(out, {kCount, c.m * c.n}, 3),
                       a64 = a.to(DType::f64), b64 = b.to(DType::f64),
                       exact = result.to(DType::f64);
      const auto args = [&](const HostTensor& x, const HostTensor& y, const HostTensor& z) {
        GemmArgs args{c.m,       c.n,       c.k,      c.transpose_a, c.transpose_b, c.accumulate,
                      x.dtype(), z.dtype(), x.data(), y.data(),      nullptr,       z.data()};
        args.batch = kCount, args.stride_a = c.m * c.k, args.stride_c = c.m * c.n;
        args.stride_b = shared ? 0 : c.k * c.n;
        return args;
      };
      ASSERT_TRUE(gemm_cuda_offers(Stream(device), args(a, b, result))) << name_of(c);
      gemm_cuda(Stream(device), args(a, b, result));
      for (std::int64_t h = 0; h < kCount; ++h) ref::gemm(args(a64, b64, exact).matrix(h));
      expect_close(result, exact, 1.01 * operation_roundoff(out), 1e-7, "C " + name_of(c));
      EXPECT_TRUE(result.guard_intact());
    }
}

TEST(GemmCublasLt, SaysWhatItDoesNotOffer) {
  PretendCuda device;
  const Stream stream(device);
  const auto offered = [&](const Case& c) { return gemm_cuda_offers(stream, Tensors(c).args()); };
  const Case gelu{.epilogue = GemmEpilogue::gelu_tanh, .pre_activation = true};
  Case odd = gelu;
  odd.n = 12;  // rows of aux are multiples of 8
  EXPECT_TRUE(offered(gelu));
  EXPECT_FALSE(offered(odd));
  EXPECT_THROW(gemm_cuda(stream, Tensors(odd).args()), Error);
  for (const DType narrow : {DType::bf16, DType::f16})
    EXPECT_FALSE(offered({.in = narrow, .out = DType::f32, .bias = true})) << "a bias has C's type";
  EXPECT_THROW(offered({.in = DType::f64, .out = DType::f64}), DeckError);
}

TEST(GemmCublasLt, PlansOnceAndAllocatesOnce) {
  const auto choices = reinterpret_cast<int (*)()>(
      dlsym(dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_NOLOAD), "fake_cublaslt_choices"));
  ASSERT_NE(choices, nullptr) << "not the stand-in: " << cublaslt::version_text();
  PretendCuda device;
  const Stream stream(device);
  const Tensors first({.bias = true}), second({.bias = true}), other({.m = 32, .bias = true});
  const int before = choices();
  for (int repeat = 0; repeat < 3; ++repeat)
    for (const Tensors* t : {&first, &second}) gemm_cuda(stream, t->args());
  EXPECT_EQ(choices(), before + 1);
  EXPECT_TRUE(first.result.same_bits(second.result));
  gemm_cuda(stream, other.args());
  EXPECT_EQ(choices(), before + 2);
  GemmArgs shifted = first.args();  // less aligned: another plan
  shifted.m -= 1, shifted.a = static_cast<const float*>(shifted.a) + 1;
  GemmArgs even = shifted;
  even.a = first.a.data();
  gemm_cuda(stream, shifted), gemm_cuda(stream, even);
  EXPECT_EQ(choices(), before + 4);
  EXPECT_EQ(device.allocated, kGemmCudaWorkspace);
  EXPECT_EQ(ops::gemm_device_bytes(DeviceKind::cuda), kGemmCudaWorkspace);
}

TEST(GemmCublasLt, RefusesASecondStream) {
  PretendCuda device;
  const Tensors t({});
  int queue = 0;
  gemm_cuda(Stream(device), t.args());
  EXPECT_THROW(gemm_cuda(Stream(device, &queue), t.args()), Error);
}

}  // namespace
}  // namespace choir
