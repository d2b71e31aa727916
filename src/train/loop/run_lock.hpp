#pragma once
// Ownership of a run directory: one run at a time. There are two proofs of ownership:
//   - a lock (flock) on log.txt, if the file system has locks; the kernel releases it when its
//     process dies. Over a network it may be visible only on its own host (Lustre's localflock) or
//     outlive a dead host (until the lease of NFS expires);
//   - the file in_use, which names the owner: host, process, start time of the process, a random
//     token, and a number that the owner increments every few seconds as a sign of life. It is the
//     only proof if locks do not exist.
// in_use is created exclusively and never overwritten by another run: a run that takes over a dead
// run's directory renames its file away first. A run that was suspended until another one took its
// directory therefore finds another token when it reads the file.
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "choir/core/process.hpp"

namespace choir {

class RunLock {
 public:
  struct Options {
    std::string host = host_name();
    double patience = 3;  ///< seconds to wait for a run that is about to end
    double beat = 5;      ///< seconds between signs of life; a run that misses three counts as dead
    double lease = 120;   ///< seconds that the lock of a dead host may remain
    std::function<void(const std::string&)> say{};   ///< receives a message about a long wait
    int (*lock)(int file, int operation) = nullptr;  ///< replaces flock() in tests
  };
  /// Waits for a run that is about to end, and for the lock of a dead one. Throws StorageError if
  /// another run is alive. Local.
  RunLock(const std::string& directory, const std::string& log, Options options);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Gives a sign of life; throws StorageError if this run no longer owns its directory or cannot
  /// find out. Costs one small read and write. Local, by any thread.
  void require_owned() const;
  /// True once this run has noticed that it lost its directory; the signs of life also check that.
  /// Local and cheap.
  bool lost() const { return lost_; }
  /// A random token, different for every start of every run.
  const std::string& token() const { return token_; }

 private:
  enum class Lock { mine, held, none };
  void acquire();
  /// Tries to lock for `seconds`.
  Lock try_lock(double seconds) const;
  /// True if the owner that wrote `last` writes another sign of life.
  bool lives(const std::string& last) const;
  /// Replaces a dead run's file, whose record is `dead`, by this run's, or creates the file.
  /// Returns false if another run was faster.
  bool claim(const std::optional<std::string>& dead);
  /// Increments the number in the file if it belongs to this run. Otherwise returns the record
  /// found; nothing if this run owns the directory.
  std::optional<std::string> renew() const;
  /// Sets lost_ if another run owns the directory.
  void look() const;
  std::string sign() const;
  [[noreturn]] void refuse(const std::string& record) const;
  void give_signs();

  std::string directory_, path_, token_, identity_;
  Options options_;
  int file_ = -1;  // of the log
  mutable std::mutex mutex_;
  mutable std::condition_variable ends_;
  mutable int number_ = 0;
  mutable std::string successor_;  // the reason of lost_
  mutable std::atomic<bool> lost_ = false;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace choir
