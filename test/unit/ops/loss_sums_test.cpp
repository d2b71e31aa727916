// Targets are counted exactly, whatever describes them, and running sums of losses keep what was
// added before.
#include "kernels/sums/sums.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "test/support/op_test.hpp"

namespace choir {
namespace {

TensorView view_of(std::vector<std::int32_t>& x) {
  return {x.data(), DType::i32, {static_cast<std::int64_t>(x.size())}};
}

double counted(const Stream& stream, const TensorView& unmasked, const TensorView& lengths,
               double number) {
  double count = -7;  // is overwritten
  const ops::CountTargets call{unmasked, lengths, number, {&count, DType::f64, {1}}};
  ops::count_targets(stream, call);
  double expected = -7;
  ref::count_targets({unmasked, lengths, number, {&expected, DType::f64, {1}}});
  EXPECT_EQ(count, expected);
  return count;
}

TEST(LossSums, TargetsAreCountedByHand) {
  CpuBench cpu;
  std::vector<std::int32_t> ids{3, -1, 0, -100, 7, INT32_MAX, INT32_MIN};
  std::vector<std::int32_t> lengths{4, 0, 9};
  EXPECT_EQ(counted(cpu.stream, view_of(ids), {}, 0), 4) << "0 is a target";
  EXPECT_EQ(counted(cpu.stream, {}, view_of(lengths), 0), 13);
  EXPECT_EQ(counted(cpu.stream, {}, {}, 5), 5);
  EXPECT_EQ(counted(cpu.stream, view_of(ids), view_of(lengths), 0.5), 17.5);
  std::vector<std::int32_t> many(100'003, 1);
  for (std::size_t i = 0; i < many.size(); i += 3) many[i] = -1;
  EXPECT_EQ(counted(cpu.stream, view_of(many), {}, 0), 66'668);
}

TEST(LossSums, SumsAndCountsRun) {
  CpuBench cpu;
  double own[2] = {1.25, 3}, sum = 10, count = 2;
  const ops::AddLosses call{
      {own, DType::f64, {2}}, {&sum, DType::f64, {1}}, {&count, DType::f64, {1}}};
  ops::add_losses(cpu.stream, call);
  ops::add_losses(cpu.stream, call);
  EXPECT_EQ(sum, 12.5);
  EXPECT_EQ(count, 8);
}

TEST(LossSums, WrongTypesAreRefused) {
  CpuBench cpu;
  double count = 0;
  std::vector<double> ids{1, 2};
  EXPECT_THROW(ops::count_targets(cpu.stream, {.unmasked = {ids.data(), DType::f64, {2}},
                                               .lengths = {},
                                               .count = {&count, DType::f64, {1}}}),
               Error);
  EXPECT_THROW(ops::count_targets(cpu.stream, {}), Error) << "without a result";
}

}  // namespace
}  // namespace choir
