#pragma once
// Writes named tensors into files, slab by slab and by any number of ranks. All calls are local;
// the caller puts barriers between the steps:
//
//   every rank    constructs the writer from the same list of tensors, which defines the layout
//   one rank      lay_out()           creates the files with their headers under temporary names
//   every rank    write() ..., sync()
//   one rank      commit(written)     renames the files if every element was written once
//
// A writer that laid out files and is destroyed without commit() removes them.
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

  /// Throws StorageError for errors of the file system, like all functions below.
  virtual void lay_out() = 0;
  /// Encodes elements [first, first + count), given as `dtype`, in the encoding of the tensor and
  /// writes them. Blocks of the encoding must be whole. Throws StorageError for a number that the
  /// encoding cannot hold.
  void write(std::string_view name, std::int64_t first, std::int64_t count, const void* from,
             DType dtype);
  /// Syncs the bytes written by this rank to disk.
  virtual void sync() = 0;
  /// Number of elements that this rank wrote.
  std::int64_t written() const { return written_; }
  /// `written` is the sum over all ranks. Throws StorageError, and leaves no file, unless it covers
  /// every element.
  void commit(std::int64_t written);

 protected:
  /// Throws StorageError for two tensors of one name.
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
