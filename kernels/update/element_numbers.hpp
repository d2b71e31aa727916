#pragma once
// The numbers of elements in the whole model, which index the random bits that update kernels round
// with.

#include <cstdint>

#include "choir/core/error.hpp"
#include "choir/core/host_device.hpp"

namespace choir::ops {

/// The numbers of the elements of a flat range in the whole model, as rows of consecutive numbers.
/// They do not depend on the layout.
struct ElementNumbers {
  std::int64_t first = 0;   ///< first number of the row that holds element 0 of the range
  std::int64_t width = 0;   ///< elements per row; 0: a single row without end
  std::int64_t stride = 0;  ///< distance from row to row
  std::int64_t column = 0;  ///< column of element 0 of the range

  CHOIR_HOST_DEVICE std::int64_t at(std::int64_t i) const {
    const std::int64_t c = column + i;
    return width == 0 ? first + c : first + c / width * stride + c % width;
  }
  /// The numbers of the range without its first `count` elements.
  ElementNumbers behind(std::int64_t count) const {
    const std::int64_t c = column + count;
    if (width == 0) return {first, 0, 0, c};
    return {first + c / width * stride, width, stride, c % width};
  }
};

/// Throws Error unless all numbers are at least 0 and rows do not overlap.
inline void check_numbers(const ElementNumbers& e) {
  CHOIR_CHECK(e.first >= 0 && e.column >= 0 && e.width >= 0 &&
                  (e.width == 0 || (e.column < e.width && e.stride >= e.width)),
              "elements from {}, column {} of rows of {} every {}", e.first, e.column, e.width,
              e.stride);
}

}  // namespace choir::ops
