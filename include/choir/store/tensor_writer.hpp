#pragma once
// Named tensors into files, slab by slab and by any number of ranks. All is local; the caller puts
// barriers between the steps:
//
//   every rank    constructs the writer from the same list of tensors: the layout follows from it
//   one rank      lay_out()           makes the files under temporary names, with their headers
//   every rank    write() ..., sync()
//   one rank      commit(written)     renames the files, when every element was written once
//
// A writer that laid out and goes without commit() removes what it made.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "choir/core/dtype.hpp"
#include "choir/store/tensor_reader.hpp"

namespace choir {

class TensorWriter {
 public:
  virtual ~TensorWriter() = default;
  TensorWriter(const TensorWriter&) = delete;
  TensorWriter& operator=(const TensorWriter&) = delete;

  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  /// Bytes of all tensors.
  std::int64_t bytes() const;

  /// StorageError when the disk refuses, as of everything below.
  virtual void lay_out() = 0;
  /// Elements [first, first + count), given as `dtype`, are encoded as the tensor is. Blocks of the
  /// encoding must be whole. StorageError for a number that the encoding cannot hold.
  void write(std::string_view name, std::int64_t first, std::int64_t count, const void* from,
             DType dtype);
  /// What this rank wrote is on the disk.
  virtual void sync() = 0;
  /// Elements that this rank wrote.
  std::int64_t written() const { return written_; }
  /// `written` by all ranks together: StorageError, and no file, unless it is every element.
  void commit(std::int64_t written);

 protected:
  /// StorageError for two tensors of one name.
  TensorWriter(std::string path, std::vector<TensorEntry> tensors);
  const std::string& path() const { return path_; }
  virtual void write_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                             const std::byte* from) = 0;
  virtual void rename_files() = 0;

 private:
  std::string path_;
  std::vector<TensorEntry> tensors_;
  std::unordered_map<std::string_view, std::size_t> index_;
  std::int64_t written_ = 0;
};

}  // namespace choir
