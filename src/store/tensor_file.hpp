#pragma once
// Reads named tensors from a file of any format, slab by slab: every rank reads its share, and no
// rank needs memory for a whole tensor.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "choir/core/dtype.hpp"
#include "choir/core/tensor.hpp"
#include "src/store/encoding.hpp"

namespace choir {

/// A tensor of a file. Its shape is row-major, independent of the order in the file.
struct TensorEntry {
  std::string name;
  Encoding encoding = Encoding::f32;
  Shape shape;

  std::int64_t bytes() const { return encoded_bytes(encoding, shape.count()); }
};

/// Checks a shape from a foreign file. Throws a StorageError that begins with `what` for too many
/// dimensions, a negative one, a product beyond 2^56, or elements that are not whole blocks of the
/// encoding.
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
  /// nullptr if there is no tensor of that name.
  const TensorEntry* find(std::string_view name) const;
  /// Throws a StorageError that names the most similar tensor if there is none of that name.
  const TensorEntry& at(std::string_view name) const;

  /// Local, for any number of threads. Reads elements [first, first + count) of the row-major
  /// tensor as `dtype` into `to`. Throws StorageError if the file cannot be read, if its type does
  /// not convert (see can_convert), or for a number that `dtype` cannot hold.
  void read(std::string_view name, std::int64_t first, std::int64_t count, void* to,
            DType dtype) const;
  /// The same without conversion: whole blocks of the encoding, as they are in the file.
  void read_stored(std::string_view name, std::int64_t first, std::int64_t count,
                   std::byte* to) const;

 protected:
  explicit TensorReader(std::string path) : path_(std::move(path)) {}
  /// Called once by the constructor of a derived class. Throws StorageError for two tensors of one
  /// name.
  void set_tensors(std::vector<TensorEntry> tensors);
  /// Reads whole blocks of encoded elements in row-major order.
  virtual void read_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                            std::byte* to) const = 0;

 private:
  std::size_t index_of(std::string_view name) const;

  std::string path_;
  std::vector<TensorEntry> tensors_;
  std::unordered_map<std::string_view, std::size_t> index_;
};

// Writes named tensors into files, slab by slab and by any number of ranks. All calls are local;
// the caller puts barriers between the steps:
//
//   every rank    constructs the writer from the same list of tensors, which defines the layout
//   one rank      lay_out()           creates the files with their headers under temporary names
//   every rank    write() ..., sync()
//   one rank      commit(written)     renames the files if every element was written once
//
// A writer that laid out files and is destroyed without commit() removes them.

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

// Opens weights of any supported format, recognised by the first bytes.

/// Local. `path` is a file, the index of shards, one of shards that are numbered by their names, or
/// a folder with weights under one of the names that Hugging Face uses. Matrices that bitsandbytes
/// quantised appear as the reals that they mean. Throws a StorageError that names the actual kind
/// of the file, or what the folder lacks, and for shards that do not hold exactly the tensors of
/// the index.
std::unique_ptr<TensorReader> open_weights(const std::string& path);

}  // namespace choir
