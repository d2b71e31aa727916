#pragma once
// Named tensors in a file of any format, read slab by slab: a rank reads its share, and no whole
// tensor has to be in anybody's memory.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "choir/core/dtype.hpp"
#include "choir/core/tensor.hpp"
#include "choir/store/encoding.hpp"

namespace choir {

/// A tensor of a file: row-major, whatever the order of its bytes there.
struct TensorEntry {
  std::string name;
  Encoding encoding = Encoding::f32;
  Shape shape;

  std::int64_t bytes() const { return encoded_bytes(encoding, shape.count()); }
};

/// A shape of a foreign file. StorageError, which begins with `what`, when there are too many dims,
/// a negative one, a product beyond 2^56, or elements that are not whole blocks of the encoding.
Shape checked_shape(const std::vector<std::int64_t>& extents, Encoding encoding,
                    const std::string& what);

class TensorReader {
 public:
  virtual ~TensorReader() = default;
  TensorReader(const TensorReader&) = delete;
  TensorReader& operator=(const TensorReader&) = delete;

  /// The file or folder, for messages.
  const std::string& path() const { return path_; }
  /// In the order of the file.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  /// nullptr when there is none of that name.
  const TensorEntry* find(std::string_view name) const;
  /// StorageError that names the nearest one there is.
  const TensorEntry& at(std::string_view name) const;

  /// Local, by any number of threads. Elements [first, first + count) of the row-major tensor as
  /// `dtype` into `to`. StorageError when the file cannot be read, does not convert (see
  /// can_convert) or holds a number that `dtype` cannot.
  void read(std::string_view name, std::int64_t first, std::int64_t count, void* to,
            DType dtype) const;

 protected:
  explicit TensorReader(std::string path) : path_(std::move(path)) {}
  /// Once, by the constructor of a derived class. StorageError for two of one name.
  void set_tensors(std::vector<TensorEntry> tensors);
  /// Whole blocks of elements as they are encoded, in row-major order.
  virtual void read_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                            std::byte* to) const = 0;

 private:
  std::size_t index_of(std::string_view name) const;

  std::string path_;
  std::vector<TensorEntry> tensors_;
  std::unordered_map<std::string_view, std::size_t> index_;
};

}  // namespace choir
