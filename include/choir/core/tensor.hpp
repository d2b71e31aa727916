#pragma once
// Shape and TensorView, a view of dense row-major memory that another object owns.
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "choir/core/dtype.hpp"
#include "choir/core/error.hpp"

namespace choir {

/// Up to six extents, held inline so that shapes never allocate.
class Shape {
 public:
  static constexpr int kMaxRank = 6;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents);

  int rank() const { return rank_; }
  std::int64_t operator[](int dim) const { return extents_[static_cast<std::size_t>(dim)]; }
  std::int64_t& operator[](int dim) { return extents_[static_cast<std::size_t>(dim)]; }
  std::int64_t back() const { return extents_[static_cast<std::size_t>(rank_ - 1)]; }
  void append(std::int64_t extent);
  /// Product of the extents; 1 for rank 0.
  std::int64_t count() const;
  /// count() / back(): the number of vectors of the last dim.
  std::int64_t rows() const { return rank_ == 0 ? 1 : count() / (back() == 0 ? 1 : back()); }
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, kMaxRank> extents_{};
  int rank_ = 0;
};

/// "[2, 3, 4]"
std::string to_string(const Shape& shape);

/// Non-owning view. On the null device `data` is an address that must not be dereferenced.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;

  std::int64_t count() const { return shape.count(); }
  std::size_t bytes() const { return static_cast<std::size_t>(count()) * size_of(dtype); }
  bool empty() const { return data == nullptr; }

  template <class T>
  T* as() const {
    CHOIR_CHECK(dtype == DTypeOf<T>::value, "tensor holds {}, not {}", name_of(dtype),
                name_of(DTypeOf<T>::value));
    return static_cast<T*>(data);
  }
  /// The same memory under another shape of equal count.
  TensorView reshaped(const Shape& to) const {
    CHOIR_CHECK(to.count() == count(), "{} elements seen as {}", count(), to_string(to));
    return {data, dtype, to};
  }
  /// Rows [first, first + rows) of the leading dim.
  TensorView slice(std::int64_t first, std::int64_t rows) const;
};

}  // namespace choir
