#include "src/store/finite.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "src/comm/null_communicator.hpp"

namespace choir {
namespace {

TEST(FiniteWeights, AreThoseWithoutASetExponent) {
  const auto first = [](DType dtype, const auto& values) {
    NotFinite found;
    found.look(values.data(), dtype, std::ssize(values), 100);
    return std::pair(found.count, found.first);
  };
  using Found = std::pair<std::int64_t, std::int64_t>;
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  std::vector<double> many(10000, 1e308);
  EXPECT_EQ(first(DType::f64, many), Found(0, -1));
  many[7777] = -inf, many[9999] = nan;
  EXPECT_EQ(first(DType::f64, many), Found(2, 7877));
  EXPECT_EQ(first(DType::f32, std::vector<float>{0, -3e38f, 1e-45f}), Found(0, -1));
  EXPECT_EQ(first(DType::f32, std::vector<float>{0, static_cast<float>(nan)}), Found(1, 101));
  EXPECT_EQ(first(DType::bf16, std::vector<std::uint16_t>{0x7f7f, 0xff80, 0x7fc0}), Found(2, 101));
  EXPECT_EQ(first(DType::f16, std::vector<std::uint16_t>{0x7bff, 0xfc00}), Found(1, 101));
  EXPECT_EQ(first(DType::i64, std::vector<std::int64_t>{-1, -1}), Found(0, -1));
}

TEST(FiniteWeights, TensorsThatAreNotAreNamed) {
  const auto alone = make_null_communicator("alone", 0, 1);
  std::vector<float> good{1, 2}, bad{1, 2, 3, INFINITY};
  std::vector<StoredTensor> tensors{{"parameters/a", DType::f32, {2}, {{0, 2, good.data()}}},
                                    {"parameters/b", DType::f32, {9}, {{5, 4, bad.data()}}}};
  try {
    require_finite(tensors, "run/step", *alone);
    FAIL() << "accepted";
  } catch (const NumericError& error) {
    EXPECT_STREQ(error.what(),
                 "the weights of run/step are not finite (NaN or infinity):\n"
                 "  parameters/b, first at element 8");
  }
  tensors.pop_back();
  EXPECT_NO_THROW(require_finite(tensors, "run/step", *alone));
}

}  // namespace
}  // namespace choir
