#include "choir/core/error.hpp"
#include "test/support/fsq_case.hpp"
#include "test/support/gradcheck.hpp"

namespace choir::test {
namespace {

ops::FsqLevels levels_of(const char* text) {
  return ops::FsqLevels::parse(text, "levels");
}

struct GoldenCodes {
  const char* levels;
  std::vector<double> x, q;
  std::int32_t index;
};

// Results of NeMo's FiniteScalarQuantizer (shift by tan, eps 1e-3).
const GoldenCodes kGoldens[] = {
    {"8,5,5,5", {0, 0, 0, 0}, {0, 0, 0, 0}, 500},
    {"8,5,5,5", {.3, -.7, 1.2, -2}, {1, -1, 2, -2}, 173},
    {"8,5,5,5", {-1.5, .05, -.2, .6}, {-4, 0, 0, 1}, 696},
    {"8,5,5,5", {-.11, .26, -.26, .9}, {0, 1, -1, 1}, 668},
    {"8,5,5,5", {10, 10, 10, 10}, {3, 2, 2, 2}, 999},
    {"8,5,5,5", {-10, -10, -10, -10}, {-4, -2, -2, -2}, 0},
    {"9,8,8,7", {0, 0, 0, 0}, {0, 0, 0, 0}, 2056},
    {"9,8,8,7", {.3, -.7, 1.2, -2}, {1, -2, 3, -3}, 527},
    {"9,8,8,7", {-.11, .26, -.26, .9}, {0, 1, -1, 2}, 3145},
    {"8,7,6,6", {0, 0, 0, 0}, {0, 0, 0, 0}, 1204},
    {"8,7,6,6", {.3, -.7, 1.2, -2}, {1, -2, 2, -3}, 293},
    {"8,7,6,6", {-.11, .26, -.26, .9}, {0, 1, -1, 2}, 1828},
    {"4,4,4", {0, 0, 0}, {0, 0, 0}, 42},
    {"4,4,4", {.3, -.7, 1.2}, {0, -1, 1}, 54},
    {"4,4,4", {-1.5, .05, -.2}, {-2, 0, 0}, 40},
    {"3,4", {.1483, -.5519}, {0, -1}, 4},
    {"3,4", {-.5913, -1.9675}, {-1, -2}, 0},
    {"3,4", {1.4028, -.2274}, {1, 0}, 8},
    {"3,4", {1.9261, -1.4060}, {1, -2}, 2},
};

TEST(Fsq, GivesTheCodesOfNemo) {
  CpuBench cpu;
  for (const GoldenCodes& golden : kGoldens) {
    SCOPED_TRACE(golden.levels);
    const ops::FsqLevels levels = levels_of(golden.levels);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      HostTensor x(dtype, {1, levels.count}), codes(dtype, {1, levels.count});
      HostTensor index(DType::i32, {1, 1});
      for (int d = 0; d < levels.count; ++d) x.set(d, golden.x[static_cast<std::size_t>(d)]);
      ops::fsq_forward(cpu.stream, {.levels = levels, .in = x, .codes = codes});
      ops::fsq_indices(cpu.stream, {.levels = levels, .codes = codes, .indices = index});
      for (int d = 0; d < levels.count; ++d) {
        const std::int32_t half = levels.of[static_cast<std::size_t>(d)] / 2;
        EXPECT_NEAR(codes[d] * half, golden.q[static_cast<std::size_t>(d)],
                    4 * half * unit_roundoff(dtype))
            << d;
      }
      EXPECT_EQ(index[0], golden.index) << name_of(dtype);
    }
  }
}

TEST(Fsq, SquashesAndPassesGradientsAsNemoDoes) {
  const FsqNumbers numbers = fsq_numbers(levels_of("8,5,5,5"));
  const double y[] = {.957832, -1.207527, 1.665642, -1.926127}, x[] = {.3, -.7, 1.2, -2};
  for (int d = 0; d < 4; ++d)
    EXPECT_NEAR(numbers.of[d].scale * std::tanh(x[d] + numbers.of[d].shift) - numbers.of[d].offset,
                y[d], 1e-6);
  CpuBench cpu;
  HostTensor in(DType::f64, {1, 4}), d_in(DType::f64, {1, 4});
  for (int d = 0; d < 4; ++d) in.set(d, x[d]);
  const HostTensor ones = HostTensor::filled(DType::f64, {1, 4}, 1);
  ops::fsq_backward(cpu.stream,
                    {.levels = levels_of("8,5,5,5"), .in = in, .d_codes = ones, .d_in = d_in});
  const double slopes[] = {.722168, .634105, .304715, .07058};
  for (int d = 0; d < 4; ++d) EXPECT_NEAR(d_in[d], slopes[d], 1e-6) << d;
}

TEST(Fsq, ChangesItsCodeAtTheThresholds) {
  CpuBench cpu;
  const auto code = [&](const char* text, double x) {
    HostTensor in(DType::f64, {1, 1}), codes(DType::f64, {1, 1});
    in.set(0, x);
    ops::fsq_forward(cpu.stream, {.levels = levels_of(text), .in = in, .codes = codes});
    return codes[0];
  };
  const std::pair<const char*, std::vector<double>> all[] = {
      {"4", {-1.152548, -.346627, .459294}},
      {"5", {-.974673, -.25568, .25568, .974673}},
      {"8", {-1.429701, -.794474, -.438188, -.143983, .150222, .506508, 1.141735}}};
  for (const auto& [levels, thresholds] : all) {
    double before = code(levels, -10);
    EXPECT_EQ(before, -1);
    for (const double at : thresholds) {
      EXPECT_EQ(code(levels, at - 2e-6), before) << levels << " at " << at;
      const double after = code(levels, at + 2e-6);
      EXPECT_GT(after, before) << levels << " at " << at;
      before = after;
    }
    EXPECT_EQ(code(levels, 10), before);
  }
}

TEST(Fsq, EveryIndexIsThatOfItsCodes) {
  CpuBench cpu;
  for (const char* text : {"8,5,5,5", "9,8,8,7", "2,3", "16,16,16,16", "65536"}) {
    const ops::FsqLevels levels = levels_of(text);
    const std::int64_t all = levels.codes();
    HostTensor indices(DType::i32, {all, 1}), again = indices;
    for (std::int64_t i = 0; i < all; ++i) indices.set(i, static_cast<double>(i));
    HostTensor codes(DType::f32, {all, levels.count});
    ops::fsq_codes(cpu.stream, {.levels = levels, .indices = indices, .codes = codes});
    ops::fsq_indices(cpu.stream, {.levels = levels, .codes = codes, .indices = again});
    for (std::int64_t i = 0; i < all; ++i) ASSERT_EQ(again[i], i) << text;
  }
}

TEST(Fsq, MatchesTheReference) {
  CpuDevice cpu;
  for (const DType dtype : kElementTypes)
    for (const char* levels : {"8,5,5,5", "4,4,4", "7,2"})
      for (const std::int64_t rows : {1, 33}) FsqCase{dtype, levels, rows, 3}.check(cpu);
  FsqCase{DType::f32, "8,5,5,5", 4000, 4}.check(cpu);  // by several threads
}

TEST(Fsq, RefusesLevelsByName) {
  const auto complaint = [](const char* text) -> std::string {
    try {
      ops::FsqLevels::parse(text, "model.levels");
    } catch (const DeckError& error) {
      return error.what();
    }
    return {};
  };
  EXPECT_EQ(complaint("8,5,5,5"), "");
  EXPECT_NE(complaint("").find("model.levels"), std::string::npos);
  EXPECT_NE(complaint("8,0").find("0 levels"), std::string::npos);
  EXPECT_NE(complaint("8,1").find("1 levels"), std::string::npos);
  EXPECT_NE(complaint("8,x").find("'x'"), std::string::npos);
  EXPECT_NE(complaint("256,256,2").find("more than 65536 codes"), std::string::npos);
  EXPECT_NE(complaint("2147483647,2147483647").find("more than 65536"), std::string::npos);
  EXPECT_NE(complaint("2,2,2,2,2,2,2,2,2").find("more than 8 numbers"), std::string::npos);
  CpuBench cpu;
  HostTensor codes(DType::f32, {1, 4}), index = HostTensor::filled(DType::i32, {1, 1}, 1000);
  EXPECT_THROW(ops::fsq_codes(cpu.stream,
                              {.levels = levels_of("8,5,5,5"), .indices = index, .codes = codes}),
               Error);
}

TEST(L1Loss, MatchesTheReference) {
  CpuDevice cpu;
  for (const DType dtype : kElementTypes)
    for (const std::int64_t width : {1, 5, 64, 641}) L1LossCase{dtype, 4, 7, width}.check(cpu);
  L1LossCase{DType::f32, 3, 40, 640}.check(cpu);  // by several threads
}

TEST(L1Loss, ItsGradientIsThatOfItsSum) {
  CpuBench cpu;
  HostTensor x = HostTensor::normal(DType::f64, {3, 5}, 1);
  const HostTensor target = HostTensor::normal(DType::f64, {3, 5}, 2);
  HostTensor lengths(DType::i32, {1});
  lengths.set(0, 2);
  const auto call = [&](const HostTensor& predicted, const HostTensor& losses, bool write) {
    ops::l1_loss(cpu.stream, {.predicted = predicted,
                              .target = target,
                              .lengths = lengths.as<std::int32_t>(),
                              .tokens = 3,
                              .losses = losses,
                              .factor = 0.2,
                              .scale = 0.5,
                              .write_gradient = write});
  };
  const auto loss = [&] {
    HostTensor losses(DType::f64, {3});
    call(x, losses, false);
    return 0.5 * (losses[0] + losses[1] + losses[2]);
  };
  HostTensor d_x = x, losses(DType::f64, {3});
  call(d_x, losses, true);
  EXPECT_EQ(losses[2], 0);
  expect_gradient(d_x, x, loss, "absolute errors");
}

}  // namespace
}  // namespace choir::test
