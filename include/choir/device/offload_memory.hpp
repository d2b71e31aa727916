#pragma once
// Memory of a rank for what the device has no room for: host memory, or a file on a local disk. The
// host sees either at an address; what is moved in every step goes by Stream copies (host) or by
// read() and write() (file), which do not go through that address.
//
// The file has no name: nothing is left behind, however the program ends. Its space is taken from
// the file system when it is made, so that no later write can find the disk full. Reads and writes
// go through the page cache of the system, so as long as memory is free they run at its speed, and
// at that of the disk beyond.
#include <string>

#include "choir/core/memory_plan.hpp"
#include "choir/device/device.hpp"

namespace choir {

class OffloadMemory {
 public:
  OffloadMemory() = default;
  /// Zeroed host memory, good for copies of the device (pinned on cuda). In a plan, on the null
  /// device, neither this nor a file is made: addresses are backed by nothing.
  static OffloadMemory on_host(Device& device, std::size_t bytes);
  /// Zeroed, in a file in `directory`, which is made where it is missing. Throws StorageError with
  /// the free space and what to do when the file cannot be made or its space not be reserved.
  static OffloadMemory in_file(Device& device, std::size_t bytes, const std::string& directory);
  ~OffloadMemory();
  OffloadMemory(OffloadMemory&& other) noexcept { *this = std::move(other); }
  OffloadMemory& operator=(OffloadMemory&& other) noexcept;

  std::size_t bytes() const { return bytes_; }
  MemoryPlace place() const { return place_; }
  /// For the host: set-up, checkpoints, tests. Of a file it is a mapping, which sees what write()
  /// has written.
  std::byte* data() const { return data_; }
  /// Files only; from any thread. Throw StorageError.
  void read(void* to, std::size_t offset, std::size_t bytes) const;
  void write(const void* from, std::size_t offset, std::size_t bytes) const;
  /// What the host has looked at of a file need not stay in memory.
  void rest() const;

 private:
  void open(const std::string& directory);
  void reserve() const;

  MemoryPlace place_ = MemoryPlace::device;
  std::size_t bytes_ = 0;
  std::byte* data_ = nullptr;
  Buffer planned_;
  HostBuffer host_;
  int descriptor_ = -1;
  std::string directory_;
};

/// True where files in `directory` live in memory, so that nothing is gained by them.
bool is_memory_file_system(const std::string& directory);

}  // namespace choir
