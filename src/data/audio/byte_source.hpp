#pragma once
// The bytes of a sound file, in a file or in memory, with repairs of its header: fields that are
// read with another value than the one that the file has. Local.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/file.hpp"

namespace choir {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::int64_t size() const = 0;

  /// Reads at most `count` bytes at `offset` and returns their number, which is smaller only at the
  /// end. Throws DataError.
  std::int64_t read_at(std::int64_t offset, void* to, std::int64_t count) const;
  /// From now on, `bytes` are read at `offset`.
  void repair(std::int64_t offset, std::string bytes) {
    repairs_.push_back({offset, std::move(bytes)});
  }

 private:
  virtual std::int64_t read_original(std::int64_t offset, void* to, std::int64_t count) const = 0;

  struct Repair {
    std::int64_t offset = 0;
    std::string bytes;
  };
  std::vector<Repair> repairs_;
};

/// Throws DataError for a file that cannot be opened.
std::unique_ptr<ByteSource> bytes_of_file(const std::string& path);
std::unique_ptr<ByteSource> bytes_in_memory(std::vector<char> bytes);
/// The bytes from `offset` on.
std::unique_ptr<ByteSource> bytes_behind(std::unique_ptr<ByteSource> source, std::int64_t offset);

/// The facts of a header that its decoder does not see.
struct HeaderFacts {
  /// Factor of the decoded samples: above 1 if samples of fewer bits than their container stand at
  /// its lower end.
  float gain = 1;
  std::string fault;  ///< "" if the header is consistent
  /// Frames that the header of a WAV file gives if the file ends before them; else 0.
  std::int64_t promised = 0;
};
/// Examines the header of a WAV file (RIFF, RF64, BW64) or CAF file and repairs it in two cases.
/// 1. The data has no size, because a pipe was written: its size becomes the number of bytes that
/// follow. 2. The container of a WAV sample is wider than its bits: the bits become those of the
/// container (the standard aligns them to its upper end; if the samples show that they stand at the
/// lower end, `gain` says so). Bytes of other formats are left alone.
HeaderFacts repair_header(ByteSource& source);

}  // namespace choir
