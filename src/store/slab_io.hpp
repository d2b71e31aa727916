#pragma once
// Bytes of state.h5 by pread and pwrite: what every rank does at once. All of it is local; errors
// are StorageErrors that name the path, the system's reason and, for a full disk, what to do.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/store/manifest.hpp"
#include "choir/store/stored_tensor.hpp"

namespace choir {

/// The system refuses to read what exists: permissions, I/O errors. Nothing is known about its
/// contents.
class UnreadableError : public StorageError {
 public:
  /// `number`: an errno.
  UnreadableError(const std::string& doing, const std::string& path, int number);
};

/// Owns a descriptor.
class File {
 public:
  enum class Mode { read, write, create };  ///< `create` truncates, and follows no link
  File(const std::string& path, Mode mode);
  /// What another rank has made, of so many bytes. A host may see that late, for over a network it
  /// keeps for up to a minute what it knew of a folder or a file: it is waited for so long.
  File(const std::string& path, Mode mode, std::int64_t bytes);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const { return path_; }
  std::int64_t bytes() const;
  void write_at(const void* data, std::int64_t bytes, std::int64_t offset) const;
  void read_at(void* data, std::int64_t bytes, std::int64_t offset) const;
  /// Takes the space for `bytes` from the file system now. Where it cannot reserve, the free space
  /// is compared instead (the C library's stand-in would write every block once).
  void reserve(std::int64_t bytes) const;
  void sync() const;
  /// Asks the system to forget what it keeps of the file in memory, as far as the disk has it. A
  /// request: see resident_share().
  void forget() const;
  /// Share of the file that is in the memory of this node now, 0 to 1.
  double resident_share() const;
  /// Closes and reports what the system says at close (some file systems write only then).
  void close();

 private:
  /// Closes what is open. 0 or the system's reason why not.
  int reopen(Mode mode);
  /// Not of what is no file but a pipe, say.
  void require_regular_file();

  std::string path_;
  int descriptor_ = -1;
};

/// Bytes done so far, for a progress line. May be empty.
using ByteProgress = std::function<void(std::int64_t bytes)>;

/// Moves this rank's pieces of one tensor between memory and file, in chunks; device memory goes
/// through one chunk of host memory. `write_pieces` returns this rank's *share* of the tensor's
/// CRC: the CRC of each piece moved on by the bytes that follow it. CRCs are linear, so the
/// exclusive or of the shares of all ranks is the CRC of the tensor, whatever the pieces are.
std::uint32_t write_pieces(const File& file, const TensorRecord& record, const StoredTensor& tensor,
                           const ByteProgress& progress);
void read_pieces(const File& file, const TensorRecord& record, const StoredTensor& tensor,
                 const ByteProgress& progress);

/// Reads the ends of this rank's pieces (of many: some of them) again, which share pages with
/// pieces of other ranks: a file system without locks may have let the page of one come over that
/// of another. StorageError that names the tensor.
void require_borders(const File& file, const TensorRecord& record, const StoredTensor& tensor);
/// Collective over ranks with equal pieces: what rank 0 has in them, all have.
void share_pieces(const StoredTensor& tensor, Communicator& sharers);

/// This rank's share of the CRC of each region: of the bytes [first, last) of the file.
std::vector<std::uint32_t> crc_shares(const File& file, const std::vector<FileRegion>& regions,
                                      std::int64_t first, std::int64_t last,
                                      const ByteProgress& progress);

/// The CRC of each region that is HDF5's own (a few KB a hundred tensors); 0 for tensors.
std::vector<std::uint32_t> structure_crcs(const File& file, const std::vector<FileRegion>& regions);

}  // namespace choir
