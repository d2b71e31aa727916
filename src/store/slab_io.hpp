#pragma once
// Parallel access of all ranks to the bytes of state.h5 by pread and pwrite. All functions are
// local unless noted; errors are StorageErrors that name the path, the system's reason and, for a
// full disk, the cure.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "src/store/manifest.hpp"
#include "src/store/stored_tensor.hpp"

namespace choir {

/// The system refuses to read an existing file (permissions, I/O errors), so its contents are
/// unknown.
class UnreadableError : public StorageError {
 public:
  /// `number`: an errno.
  UnreadableError(const std::string& doing, const std::string& path, int number);
};

/// A file; owns the descriptor.
class File {
 public:
  enum class Mode { read, write, create };  ///< `create` truncates and follows no link
  File(const std::string& path, Mode mode);
  /// Opens a file of this size that another rank has created. A network file system may show it
  /// late because hosts cache folders and attributes for up to a minute; the constructor waits that
  /// long.
  File(const std::string& path, Mode mode, std::int64_t bytes);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const { return path_; }
  std::int64_t bytes() const;
  void write_at(const void* data, std::int64_t bytes, std::int64_t offset) const;
  void read_at(void* data, std::int64_t bytes, std::int64_t offset) const;
  /// Reserves space for `bytes` in the file system now. If it cannot reserve, the free space is
  /// compared instead (the C library's fallback would write every block once).
  void reserve(std::int64_t bytes) const;
  void sync() const;
  /// Asks the system to drop cached pages that are on disk already. This is only a request: see
  /// resident_share().
  void forget() const;
  /// Share of the file in the page cache of this node, 0 to 1.
  double resident_share() const;
  /// Closes the file and reports errors of close (some file systems write only then).
  void close();

 private:
  /// Closes the open descriptor and opens again. Returns 0 or an errno.
  int reopen(Mode mode);
  /// Throws for anything but a regular file, for example a pipe.
  void require_regular_file();

  std::string path_;
  int descriptor_ = -1;
};

/// Called with the number of bytes of each chunk, for a progress line. May be empty.
using ByteProgress = std::function<void(std::int64_t bytes)>;

/// Moves this rank's pieces of one tensor between memory and file in chunks; device memory goes
/// through one chunk of host memory. `write_pieces` returns this rank's *share* of the tensor's
/// CRC: the CRC of each piece, shifted by the bytes that follow it. CRCs are linear, so the
/// exclusive or of the shares of all ranks is the CRC of the tensor for any division into pieces.
std::uint32_t write_pieces(const File& file, const TensorRecord& record, const StoredTensor& tensor,
                           const ByteProgress& progress);
void read_pieces(const File& file, const TensorRecord& record, const StoredTensor& tensor,
                 const ByteProgress& progress);

/// Reads the ends of this rank's pieces (of some of them if there are many) again. They share pages
/// with pieces of other ranks, and a file system without locks may have overwritten one page with
/// another rank's version. Throws a StorageError that names the tensor.
void require_borders(const File& file, const TensorRecord& record, const StoredTensor& tensor);
/// Collective over ranks with equal pieces: broadcasts the contents of rank 0.
void share_pieces(const StoredTensor& tensor, Communicator& sharers);

/// This rank's share of the CRC of each region, computed over bytes [first, last) of the file.
std::vector<std::uint32_t> crc_shares(const File& file, const std::vector<FileRegion>& regions,
                                      std::int64_t first, std::int64_t last,
                                      const ByteProgress& progress);

/// The CRC of each region of HDF5's own data (a few KB per hundred tensors); 0 for tensors.
std::vector<std::uint32_t> structure_crcs(const File& file, const std::vector<FileRegion>& regions);

}  // namespace choir
