#pragma once
// The lock of a node's shared memory: its holder is the only process of this user that is between
// looking for room and taking it.
#include <functional>
#include <string>

namespace choir {

class RoomLock {
 public:
  /// Its file; everybody may make files in that folder.
  static std::string usual_path();

  /// Local. Waits for the lock, at most so many seconds, and calls `idle` meanwhile. The lock of a
  /// process that dies is released. Where no such file can be made because there is no such folder,
  /// or the file system has no locks, nothing is locked. CommError where the wait is over, naming
  /// the holder, and where the file is a link, no regular file, or belongs to somebody else.
  RoomLock(const std::string& path, double seconds, const std::function<void()>& idle);
  ~RoomLock();
  RoomLock(const RoomLock&) = delete;
  RoomLock& operator=(const RoomLock&) = delete;

 private:
  int file_ = -1;
};

}  // namespace choir
