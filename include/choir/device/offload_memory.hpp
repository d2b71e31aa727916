#pragma once
// Memory of a rank for data that does not fit on the device: host memory, or a file on a local
// disk. Both are visible to the host at an address. Data that moves in every step is copied by a
// Stream (host) or by read() and write() (file), which do not use that address.
//
// The file has no name, so nothing is left behind, however the program ends. Its space is reserved
// when it is created, so that no later write can find the disk full. Reads and writes use the page
// cache of the system: while memory is free they run at its speed, and beyond that at the speed of
// the disk.
#include <string>

#include "choir/core/memory_plan.hpp"
#include "choir/device/device.hpp"

namespace choir {

class OffloadMemory {
 public:
  OffloadMemory() = default;
  /// Zeroed host memory that suits copies of the device (pinned on cuda). On the null device
  /// neither this nor a file is created, and the addresses have no memory.
  static OffloadMemory on_host(Device& device, std::size_t bytes);
  /// A zeroed file in `directory`, which is created if it does not exist. Throws StorageError with
  /// the free space and a hint if the file cannot be created or its space cannot be reserved.
  static OffloadMemory in_file(Device& device, std::size_t bytes, const std::string& directory);
  ~OffloadMemory();
  OffloadMemory(OffloadMemory&& other) noexcept { *this = std::move(other); }
  OffloadMemory& operator=(OffloadMemory&& other) noexcept;

  std::size_t bytes() const { return bytes_; }
  MemoryPlace place() const { return place_; }
  /// Address for the host: set-up, checkpoints, tests. For a file it is a mapping, which shows the
  /// data of write().
  std::byte* data() const { return data_; }
  /// Only for files; may be called from any thread. Throw StorageError.
  void read(void* to, std::size_t offset, std::size_t bytes) const;
  void write(const void* from, std::size_t offset, std::size_t bytes) const;
  /// Lets the system drop the pages of a file that the host has read.
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

/// True if files in `directory` live in memory, so that offloading to them gains nothing.
bool is_memory_file_system(const std::string& directory);

}  // namespace choir
