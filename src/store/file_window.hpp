#pragma once
// A run of bytes of an open file, read at any place: a whole file, or a member of an archive in
// which it lies uncompressed.
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "src/store/slab_io.hpp"

namespace choir {

class FileWindow {
 public:
  /// The whole file. StorageError when it cannot be opened or is a folder.
  explicit FileWindow(const std::string& path);
  /// The whole of an open file; messages call it `name`.
  FileWindow(std::shared_ptr<const File> file, std::string name);

  /// Bytes [first, first + bytes) of this one, which must have them.
  FileWindow part(std::int64_t first, std::int64_t bytes, const std::string& name) const;

  /// "model.nemo", or "model.nemo: model_weights.ckpt" for a part.
  const std::string& name() const { return name_; }
  std::int64_t bytes() const { return bytes_; }
  /// StorageError when the window ends first.
  void read_at(void* to, std::int64_t bytes, std::int64_t offset) const;
  std::string text_at(std::int64_t offset, std::int64_t bytes) const;

  /// A little-endian number.
  template <class T>
  T number_at(std::int64_t offset) const {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    read_at(&value, sizeof value, offset);
    return value;
  }

 private:
  std::shared_ptr<const File> file_;
  std::string name_;
  std::int64_t begin_ = 0, bytes_ = 0;
};

}  // namespace choir
