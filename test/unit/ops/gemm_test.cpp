// Products by every library path against plain loops in f64.
#include "kernels/gemm/gemm.hpp"

#include <omp.h>
#include <sys/resource.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <new>

#include "kernels/gemm/gemm.hpp"
#include "src/device/null_device.hpp"
#include "test/support/op_test.hpp"

namespace choir {
namespace {

struct Case {
  std::int64_t m, n, k;
  DType in, out;
  bool transpose_a, transpose_b, accumulate, bias;
};

std::string name_of(const Case& c) {
  return fmt::format("{} x {} x {} {} into {}{}{}{}{}", c.m, c.n, c.k, name_of(c.in),
                     name_of(c.out), c.transpose_a ? ", A^T" : "", c.transpose_b ? ", B^T" : "",
                     c.accumulate ? ", +=" : "", c.bias ? ", bias" : "");
}

/// Bound for sums of k products of unit normals: partial sums reach sqrt(k), so k roundings of
/// random sign give u k / sqrt(6) (one sigma); 4 u k is ten times that. The result is rounded once
/// to its own type, and once more if a library adds C afterwards.
double absolute_tolerance(const Case& c) {
  const double u = c.in == DType::f64 ? 0x1p-53 : 0x1p-24;
  return 4 * u * static_cast<double>(c.k + 2);
}
double relative_tolerance(const Case& c) {
  return 2.01 * unit_roundoff(c.out);
}

using Run = std::function<bool(PlanCache&, const GemmArgs&)>;

void compare_product(const Case& c, const Run& run, const std::string& path) {
  const HostTensor a =
      HostTensor::normal(c.in, {c.transpose_a ? c.k : c.m, c.transpose_a ? c.m : c.k}, 1);
  const HostTensor b =
      HostTensor::normal(c.in, {c.transpose_b ? c.n : c.k, c.transpose_b ? c.k : c.n}, 2);
  const HostTensor bias = HostTensor::normal(c.in, {c.n}, 3);
  HostTensor actual(c.out, {c.m, c.n});
  if (c.accumulate) actual = HostTensor::normal(c.out, {c.m, c.n}, 4);
  HostTensor expected = actual.to(DType::f64);
  const HostTensor a64 = a.to(DType::f64), b64 = b.to(DType::f64), bias64 = bias.to(DType::f64);
  GemmArgs args{c.m,
                c.n,
                c.k,
                c.transpose_a,
                c.transpose_b,
                c.accumulate,
                c.in,
                c.out,
                a.data(),
                b.data(),
                c.bias ? bias.data() : nullptr,
                actual.data()};
  PlanCache plans;
  if (!run(plans, args)) return;
  args.in = args.out = DType::f64;
  args.a = a64.data(), args.b = b64.data(), args.c = expected.data();
  if (c.bias) args.bias = bias64.data();
  ref::gemm(args);
  expect_close(actual, expected, relative_tolerance(c), absolute_tolerance(c),
               path + " " + name_of(c));
  EXPECT_TRUE(actual.guard_intact()) << path << " " << name_of(c);
}

const std::array<std::pair<DType, DType>, 6> kTypesInOut = {{{DType::f64, DType::f64},
                                                             {DType::f32, DType::f32},
                                                             {DType::bf16, DType::bf16},
                                                             {DType::bf16, DType::f32},
                                                             {DType::f16, DType::f16},
                                                             {DType::f16, DType::f32}}};
const std::array<std::array<std::int64_t, 3>, 8> kShapes = {{{1, 1, 1},
                                                             {1, 65, 33},
                                                             {17, 3, 7},
                                                             {16, 32, 64},
                                                             {65, 129, 100},
                                                             {96, 48, 128},
                                                             {7, 200, 16},
                                                             {9, 512, 40}}};

void over_all(const Run& run, const std::string& path) {
  for (const auto& [in, out] : kTypesInOut)
    for (const auto& shape : kShapes)
      for (int bits = 0; bits < 16; ++bits)
        compare_product({shape[0], shape[1], shape[2], in, out, (bits & 1) != 0, (bits & 2) != 0,
                         (bits & 4) != 0, (bits & 8) != 0},
                        run, path);
}

TEST(Gemm, DispatchMatchesReference) {
  over_all([](PlanCache& plans, const GemmArgs& args) { return gemm_cpu(plans, args), true; },
           "cpu");
}

TEST(Gemm, FallbackWithoutOneDnnMatchesReference) {
  over_all([](PlanCache& plans, const GemmArgs& args) { return gemm_blas(plans, args), true; },
           "blas");
}

// Operands larger than a block: divided along their rows, columns and inner extent, alone and
// together.
TEST(Gemm, SixteenBitsAreWidenedBlockByBlock) {
  const auto run = [](PlanCache& plans, const GemmArgs& args) {
    gemm_widened(plans, args, gemm_blas);
    return true;
  };
  const std::array<std::array<std::int64_t, 3>, 4> shapes = {
      {{5, 1601, 700}, {1601, 5, 700}, {9, 40, 26301}, {600, 1801, 3}}};
  for (const auto& [in, out] : kTypesInOut)
    for (const auto& shape : shapes)
      for (int bits = 0; bits < 4 && size_of(in) == 2; ++bits)
        compare_product({shape[0], shape[1], shape[2], in, out, (bits & 1) != 0, (bits & 2) != 0,
                         bits % 3 == 0, bits > 1},
                        run, "widened");
}

TEST(Gemm, OneDnnTakesEveryProductOfALinearLayer) {
  if (!onednn_version()) GTEST_SKIP() << "built without oneDNN";
  over_all([](PlanCache& plans, const GemmArgs& args) { return gemm_onednn(plans, args); },
           "oneDNN");
}

TEST(Gemm, OneDnnWidensProductsOfBf16) {
  if (!onednn_version()) GTEST_SKIP() << "built without oneDNN";
  if (!cpu_features().avx512) GTEST_SKIP() << "needs AVX-512";
  HostTensor x = HostTensor::normal(DType::bf16, {32, 32}, 1),
             c = HostTensor::filled(DType::f32, {32, 32}, 0);
  PlanCache plans;
  EXPECT_TRUE(gemm_onednn(plans, {32, 32, 32, true, false, true, DType::bf16, DType::f32, x.data(),
                                  x.data(), nullptr, c.data()}));
}

// The product is refused before the call of the library, which would write through a null pointer.
TEST(Gemm, MemoryRefusedForGeneratedCodeIsReported) {
  if (!onednn_version()) GTEST_SKIP() << "built without oneDNN";
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer takes terabytes of addresses";
#endif
  const HostTensor x = HostTensor::normal(DType::f32, {64, 64}, 1);
  HostTensor y(DType::f32, {64, 64});
  const auto ever_new_products = [&] {
    omp_set_num_threads(1);  // a child process has no other threads
    PlanCache plans;
    const rlimit all{16 << 20, 16 << 20};
    const auto multiply = [&](std::int64_t extent) {
      gemm_onednn(plans, {.m = extent,
                          .n = extent,
                          .k = extent,
                          .in = DType::f32,
                          .out = DType::f32,
                          .a = x.data(),
                          .b = x.data(),
                          .c = y.data()});
    };
    multiply(64);
    setrlimit(RLIMIT_AS, &all);  // less than the operand has
    try {
      for (std::int64_t extent = 8; extent < 64; ++extent) multiply(extent);
    } catch (const std::bad_alloc&) {
      std::_Exit(7);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(ever_new_products(), testing::ExitedWithCode(7), "");
}

// Products of generation, and their neighbours: products with one row more are computed by a
// library.
TEST(Gemm, FewRowsMatchReferenceInOnePass) {
  int taken = 0;
  const auto run = [&](PlanCache& plans, const GemmArgs& args) {
    GemmArgs once = args;
    once.reads_b_once = true;
    if (gemm_few_rows(plans, once)) return ++taken > 0;
    return gemm_cpu(plans, once), true;
  };
  for (const auto& [in, out] : kTypesInOut)
    for (const std::int64_t m : {1, 2, 3, 7, 8, 9})
      for (const std::int64_t k : {1, 8, 61, 128, 576})
        for (int bits = 0; bits < 4; ++bits)
          compare_product({m, 70, k, in, out, false, true, (bits & 1) != 0, (bits & 2) != 0}, run,
                          "few rows");
  EXPECT_EQ(taken, 5 * 5 * 5 * 4) << "up to 8 rows, and not f64";
}

TEST(Gemm, FewRowsAreEachAsIfAlone) {
  constexpr std::int64_t kRows = 7, kWidth = 40, kInner = 301;
  for (const DType type : {DType::f32, DType::bf16}) {
    const HostTensor a = HostTensor::normal(type, {kRows, kInner}, 1),
                     b = HostTensor::normal(type, {kWidth, kInner}, 2);
    HostTensor all(type, {kRows, kWidth}), alone(type, {kRows, kWidth});
    PlanCache plans;
    GemmArgs args{.m = kRows, .n = kWidth, .k = kInner, .transpose_b = true, .in = type};
    args.out = type, args.a = a.data(), args.b = b.data(), args.c = all.data();
    ASSERT_TRUE(gemm_few_rows(plans, args));
    args.m = 1;
    for (std::int64_t row = 0; row < kRows; ++row) {
      args.a = a.view().slice(row, 1).data, args.c = alone.view().slice(row, 1).data;
      ASSERT_TRUE(gemm_few_rows(plans, args));
    }
    EXPECT_TRUE(all.same_bits(alone)) << name_of(type);
  }
}

TEST(Gemm, F16SumsInF32AndOverflowsToInfinity) {
  // 300 x 300 is beyond f16: the sum is infinite, or finite if the terms cancel in f32.
  for (const auto& run : {gemm_cpu, gemm_blas}) {
    HostTensor a = HostTensor::filled(DType::f16, {2, 2}, 300), b = a, c(DType::f16, {2, 2});
    HostTensor wide(DType::f32, {2, 2});
    a.set(1, -299);
    PlanCache plans;
    GemmArgs args{.m = 2, .n = 2, .k = 2, .in = DType::f16, .out = DType::f16};
    args.a = a.data(), args.b = b.data(), args.c = c.data();
    run(plans, args);
    EXPECT_EQ(c[0], 300);
    EXPECT_EQ(c[2], INFINITY);
    args.out = DType::f32, args.c = wide.data();
    run(plans, args);
    EXPECT_EQ(wide[2], 180000);
  }
}

TEST(Gemm, NamesTheLibraryThatRuns) {
  for (const DType type : kElementTypes) {
    const HostTensor x = HostTensor::normal(type, {32, 32}, 1);
    HostTensor y(type, {32, 32});
    PlanCache plans;
    const bool taken = gemm_onednn(plans, {.m = 32,
                                           .n = 32,
                                           .k = 32,
                                           .in = type,
                                           .out = type,
                                           .a = x.data(),
                                           .b = x.data(),
                                           .c = y.data()});
    const std::string library = ops::gemm_library(type);
    const bool widened = library.ends_with("(in f32)");
    EXPECT_EQ(library.starts_with("oneDNN") && !widened, taken) << library;
    EXPECT_EQ(widened, !taken && size_of(type) == 2) << library;
    EXPECT_EQ(library.ends_with("and OpenBLAS"),
              taken && type == DType::f32 && !cpu_features().avx512)
        << library;
  }
}

TEST(Gemm, LinearLayerThroughTheOp) {
  CpuBench cpu;
  const HostTensor x = HostTensor::normal(DType::f64, {3, 5, 4}, 1);
  const HostTensor w = HostTensor::normal(DType::f64, {6, 4}, 2);
  const HostTensor bias = HostTensor::normal(DType::f64, {6}, 3);
  HostTensor y(DType::f64, {3, 5, 6}), expected(DType::f64, {3, 5, 6});
  ops::gemm(cpu.stream, x, w, y, {.transpose_b = true, .bias = bias});
  ref::gemm({15, 6, 4, false, true, false, DType::f64, DType::f64, x.data(), w.data(), bias.data(),
             expected.data()});
  expect_close(y, expected, 0, 4 * 0x1p-53 * 6, "Y = X W^T + b");
  EXPECT_DOUBLE_EQ(cpu.work.flops, 2.0 * 15 * 6 * 4);
  EXPECT_DOUBLE_EQ(cpu.work.bytes, 8.0 * (15 * 4 + 6 * 4 + 15 * 6));
}

TEST(Gemm, NullDeviceOnlyCounts) {
  NullDevice device;
  WorkCounter work;
  const Stream stream(device, &work);
  const auto fake = [&](DType type, const Shape& shape) {
    return TensorView{device.allocate(64), type, shape};
  };
  ops::gemm(stream, fake(DType::bf16, {8, 16}), fake(DType::bf16, {8, 32}),
            fake(DType::f32, {16, 32}), {.transpose_a = true, .accumulate = true});
  EXPECT_DOUBLE_EQ(work.flops, 2.0 * 8 * 16 * 32);
  EXPECT_DOUBLE_EQ(work.bytes, 2.0 * 8 * (16 + 32) + 2 * 4.0 * 16 * 32);
}

TEST(Gemm, RefusesWhatDoesNotFit) {
  CpuBench cpu;
  const HostTensor x(DType::f32, {4, 8}), w(DType::f32, {6, 8}), y(DType::f32, {4, 6});
  EXPECT_THROW(ops::gemm(cpu.stream, x, w, y), Error);  // W must be transposed
  EXPECT_THROW(ops::gemm(cpu.stream, x, HostTensor(DType::bf16, {6, 8}), y, {.transpose_b = true}),
               Error);
  EXPECT_THROW(ops::gemm(cpu.stream, x, w, HostTensor(DType::bf16, {4, 6}), {.transpose_b = true}),
               Error);
  EXPECT_THROW(ops::gemm(cpu.stream, HostTensor(DType::f16, {4, 8}), HostTensor(DType::f16, {6, 8}),
                         HostTensor(DType::bf16, {4, 6}), {.transpose_b = true}),
               Error);
  EXPECT_THROW(
      ops::gemm(cpu.stream, x, w, y, {.transpose_b = true, .bias = HostTensor(DType::f32, {5})}),
      Error);
}

TEST(Gemm, RepeatsBitwise) {
  CpuBench cpu;
  for (const DType type : kElementTypes) {
    const HostTensor dy = HostTensor::normal(type, {300, 130}, 1),
                     x = HostTensor::normal(type, {300, 70}, 2);
    HostTensor first(sum_dtype(type), {130, 70}), second(sum_dtype(type), {130, 70});
    ops::gemm(cpu.stream, dy, x, first, {.transpose_a = true});
    ops::gemm(cpu.stream, dy, x, second, {.transpose_a = true});
    EXPECT_TRUE(first.same_bits(second)) << name_of(type);
  }
}

// There are more shapes than kept plans; products of integers are exact.
TEST(Gemm, EverNewShapes) {
  CpuBench cpu;
  constexpr std::int64_t kMost = 2100, kInner = 3;
  HostTensor a(DType::f32, {kMost, kInner}), b(DType::f32, {kInner, 2}), c(DType::f32, {kMost, 2});
  for (std::int64_t i = 0; i < kMost * kInner; ++i) a.set(i, static_cast<double>(i % 17));
  for (std::int64_t i = 0; i < 2 * kInner; ++i) b.set(i, static_cast<double>(i + 1));
  for (std::int64_t round = 0; round < 2; ++round)
    for (std::int64_t m = 1; m <= kMost; ++m) {
      const std::int64_t row = m - 1;
      c.set(2 * row + 1, -1);
      ops::gemm(cpu.stream, a.view().slice(0, m), b, c.view().slice(0, m));
      double sum = 0;
      for (std::int64_t k = 0; k < kInner; ++k) sum += a[row * kInner + k] * b[2 * k + 1];
      ASSERT_EQ(c[2 * row + 1], sum) << m;
    }
}

}  // namespace
}  // namespace choir
