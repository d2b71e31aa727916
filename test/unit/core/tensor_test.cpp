#include "choir/core/tensor.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace choir {
namespace {

TEST(Shape, CountsRowsAndPrints) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape.count(), 24);
  EXPECT_EQ(shape.rows(), 6);
  EXPECT_EQ(shape.back(), 4);
  EXPECT_EQ(to_string(shape), "[2, 3, 4]");
  EXPECT_EQ(Shape{}.count(), 1);
  EXPECT_EQ((Shape{3, 0}.count()), 0);
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
}

TEST(Shape, RefusesNonsense) {
  EXPECT_THROW((Shape{1, 1, 1, 1, 1, 1, 1}), Error);
  EXPECT_THROW((Shape{-1}), Error);
}

TEST(TensorView, SlicesAndReshapes) {
  std::vector<float> data(12);
  const TensorView view{data.data(), DType::f32, {4, 3}};
  EXPECT_EQ(view.bytes(), 48u);
  const TensorView rows = view.slice(1, 2);
  EXPECT_EQ(rows.as<float>(), data.data() + 3);
  EXPECT_EQ(rows.shape, (Shape{2, 3}));
  EXPECT_EQ(view.slice(4, 0).count(), 0);
  EXPECT_THROW(view.slice(3, 2), Error);
  EXPECT_THROW(view.slice(-1, 1), Error);
  EXPECT_EQ(view.reshaped({2, 6}).shape, (Shape{2, 6}));
  EXPECT_THROW(view.reshaped({5}), Error);
  EXPECT_THROW(view.as<double>(), Error);
  EXPECT_TRUE(TensorView{}.empty());
}

}  // namespace
}  // namespace choir
