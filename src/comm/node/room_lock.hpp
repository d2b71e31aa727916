#pragma once
// The lock of a node's shared memory. Only its holder, among the processes of this user, checks the
// free space and then allocates it.
#include <functional>
#include <string>

namespace choir {

/// Held by at most one process of this user while it checks the free space and allocates it.
class RoomLock {
 public:
  /// Path of the lock file, in a folder in which every user may create files.
  static std::string usual_path();

  /// Waits at most `seconds` for the lock and calls `idle` meanwhile. The system releases the lock
  /// of a process that dies. Nothing is locked if the folder does not exist or the file system has
  /// no locks. Throws CommError with the holder after the timeout, and if the file is a link, not a
  /// regular file, or owned by another user. Local.
  RoomLock(const std::string& path, double seconds, const std::function<void()>& idle);
  ~RoomLock();
  RoomLock(const RoomLock&) = delete;
  RoomLock& operator=(const RoomLock&) = delete;

 private:
  int file_ = -1;
};

}  // namespace choir
