#include "choir/core/tensor.hpp"

namespace choir {

Shape::Shape(std::initializer_list<std::int64_t> extents) {
  for (const std::int64_t extent : extents) append(extent);
}

void Shape::append(std::int64_t extent) {
  CHOIR_CHECK(rank_ < kMaxRank, "a shape has at most {} extents", kMaxRank);
  CHOIR_CHECK(extent >= 0, "negative extent {}", extent);
  extents_[static_cast<std::size_t>(rank_++)] = extent;
}

std::int64_t Shape::count() const {
  std::int64_t product = 1;
  for (int d = 0; d < rank_; ++d) product *= extents_[static_cast<std::size_t>(d)];
  return product;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int d = 0; d < shape.rank(); ++d) text += (d ? ", " : "") + std::to_string(shape[d]);
  return text + "]";
}

TensorView TensorView::slice(std::int64_t first, std::int64_t rows) const {
  CHOIR_CHECK(shape.rank() >= 1 && first >= 0 && first + rows <= shape[0], "rows [{}, {}) of {}",
              first, first + rows, to_string(shape));
  const std::int64_t row = shape[0] == 0 ? 0 : count() / shape[0];
  Shape part = shape;
  part[0] = rows;
  auto* base =
      static_cast<std::byte*>(data) + static_cast<std::size_t>(first * row) * size_of(dtype);
  return {base, dtype, part};
}

}  // namespace choir
