// Tests of frames that are joined side by side in rows, and split again.
#include "src/models/salm/two_towers.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "src/device/cpu_device.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

class Stacking {
 public:
  /// Two clips of 3 padded frames, the second of which has 2 real ones, and 2 columns.
  explicit Stacking(std::int64_t frames) : stack_(frames) {
    pass_.begin(Mode::train, {.batch = 1, .tokens = 1}, 0);
    const int number =
        pass_.add_sequence({.batch = 2, .tokens = 3, .repeated = true, .lengths = lengths_.data()});
    rows_ = pass_.add_sequence(stack_.rows_of(pass_.sequence(number)));
    frames_ = number;
  }

  std::vector<double> forward(const std::vector<double>& frames) {
    return values(stack_.forward(pass_, tensor(frames, {6, 2}), frames_, rows_));
  }
  std::vector<double> backward(const std::vector<double>& d_rows, std::int64_t width) {
    return values(stack_.backward(
        pass_, tensor(d_rows, {static_cast<std::int64_t>(d_rows.size()) / width, width}), frames_,
        rows_));
  }

 private:
  Tensor tensor(const std::vector<double>& list, const Shape& shape) {
    Tensor made = pass_.allocate(shape, "test");
    std::ranges::copy(list, made.as<double>());
    return made;
  }
  static std::vector<double> values(const Tensor& of) {
    return {of.as<double>(), of.as<double>() + of.count()};
  }

  std::array<std::int32_t, 2> lengths_{3, 2};
  CpuDevice device_;
  Arena arena_{device_, 1 << 20};
  Pass pass_{Stream(device_), arena_, precision_of("fp64"), 1};
  FrameStack stack_;
  int frames_ = 0, rows_ = 0;
};

using Values = std::vector<double>;

TEST(FrameStack, PutsFramesSideBySideWithZerosBehindTheClip) {
  // 99 marks padding, which must have no effect.
  EXPECT_EQ(Stacking(2).forward({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 99, 99}),
            (Values{1, 2, 3, 4, 5, 6, 0, 0, 7, 8, 9, 10, 0, 0, 0, 0}));
  EXPECT_EQ(Stacking(4).forward({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 99, 99}),
            (Values{1, 2, 3, 4, 5, 6, 0, 0, 7, 8, 9, 10, 0, 0, 0, 0}));
}

TEST(FrameStack, GivesEachFrameItsGradient) {
  EXPECT_EQ(Stacking(2).backward({1, 2, 3, 4, 5, 6, 99, 99, 7, 8, 9, 10, 99, 99, 99, 99}, 4),
            (Values{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 0}));
}

TEST(FrameStack, OfOneFrameIsTheFrames) {
  const Values frames{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 99, 99};
  EXPECT_EQ(Stacking(1).forward(frames), frames);
  EXPECT_EQ(Stacking(1).backward(frames, 2), frames);
}

}  // namespace
}  // namespace choir
