#pragma once
// One run at a time writes a run directory. A lock on its log says so on one host. Over a network a
// lock may be none, may be seen on its own host alone (Lustre's localflock), or may outlive a host
// that died (by the lease of NFS): there a run also gives a sign of life every few seconds, in the
// file in_use, which says who it is.
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "choir/core/process.hpp"

namespace choir {

class RunLock {
 public:
  struct Options {
    std::string host = host_name();
    double patience = 3;  ///< seconds for a run that is just ending
    double beat = 5;      ///< seconds from sign to sign; a run that misses three is dead
    double lease = 120;   ///< seconds that the lock of a dead host may last
    std::function<void(const std::string&)> say{};  ///< is told what is waited for
  };
  /// Local. Waits for a run that is just ending, and for what a dead one left. StorageError while
  /// another run lives.
  RunLock(const std::string& directory, const std::string& log, Options options);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  enum class Lock { mine, held, none };
  /// Tries for so many seconds.
  Lock try_lock(double seconds) const;
  /// Whether who gave the last sign gives another one.
  bool lives(const std::string& last) const;
  [[noreturn]] void refuse(const std::string& who) const;
  void give_signs();

  std::string directory_, sign_;
  Options options_;
  int file_ = -1;  // of the log
  std::mutex mutex_;
  std::condition_variable ends_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace choir
