#include "choir/ops/copy_rows.hpp"

#include "test/cuda/cuda_fixture.hpp"

namespace choir::test {
namespace {

class CudaCopyRows : public CudaTest {};

TEST_F(CudaCopyRows, CopiesWhatItShouldAndNothingElse) {
  struct Case {
    std::int64_t rows, width, from_stride, to_stride, from_first, to_first;
    std::int32_t further = 0;  ///< part of `to_first` that only the device has, in widths
  };
  for (const DType dtype : {DType::f32, DType::bf16, DType::u8})
    for (const Case& c : {Case{3, 32, 96, 32, 0, 0}, Case{3, 32, 96, 32, 32, 64},
                          Case{4, 6, 10, 8, 2, 4}, Case{5, 7, 9, 11, 1, 3}, Case{1, 1, 1, 1, 0, 0},
                          Case{3, 40, 0, 48, 16, 0}, Case{300, 8, 16, 24, 8, 8},
                          Case{3, 32, 96, 160, 32, 64, 2}, Case{5, 7, 9, 40, 1, 21, 3}}) {
      SCOPED_TRACE(fmt::format("{} {} rows of {}", name_of(dtype), c.rows, c.width));
      const std::int64_t unit = static_cast<std::int64_t>(size_of(dtype));
      const Shape from_shape{c.from_first + c.rows * c.from_stride + c.width};
      const Shape to_shape{c.to_first + c.rows * c.to_stride};
      std::vector<unsigned char> source(static_cast<std::size_t>(from_shape.count() * unit));
      for (std::size_t i = 0; i < source.size(); ++i)
        source[i] = static_cast<unsigned char>(i * 7 + i / 251);
      const DeviceTensor from(device(), dtype, from_shape, source.data());
      const DeviceTensor to(device(), dtype, to_shape);
      std::vector<unsigned char> expected(static_cast<std::size_t>(to_shape.count() * unit), 0xFF);
      for (std::int64_t r = 0; r < c.rows; ++r)
        std::memcpy(expected.data() + (c.to_first + r * c.to_stride) * unit,
                    source.data() + (c.from_first + r * c.from_stride) * unit,
                    static_cast<std::size_t>(c.width * unit));
      const auto place = [&](const DeviceTensor& x, std::int64_t first, std::int64_t stride) {
        return ops::RowBlock{static_cast<unsigned char*>(x.view().data) + first * unit, stride};
      };
      const DeviceTensor further(device(), DType::i32, {1}, &c.further);
      ops::copy_rows(stream(), dtype, c.rows, c.width, place(from, c.from_first, c.from_stride),
                     place(to, c.to_first - c.further * c.width, c.to_stride),
                     c.further > 0 ? further.view().as<std::int32_t>() : nullptr);
      EXPECT_EQ(to.host<unsigned char>(), expected);
      EXPECT_TRUE(to.intact());
    }
}

}  // namespace
}  // namespace choir::test
