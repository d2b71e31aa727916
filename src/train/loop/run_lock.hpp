#pragma once
// One run at a time owns a run directory. Two things show who does:
//  - a lock (flock) on log.txt, where the file system has locks; the kernel frees it when its
//    process dies. Over a network it may be visible on its own host alone (Lustre's localflock) or
//    outlive a host that died (by the lease of NFS);
//  - the file in_use, which names the owner: host, process, start time of the process, a random
//    token, and a number that the owner raises every few seconds as a sign of life. It is the only
//    proof where locks do not exist.
// in_use is created exclusively and never overwritten by another run: who takes over a dead run's
// directory renames its file away first. A run that was suspended for so long that another one took
// its directory therefore finds another token, whenever it looks.
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
    double patience = 3;  ///< seconds to wait for a run that is just ending
    double beat = 5;      ///< seconds from sign to sign; a run that misses three counts as dead
    double lease = 120;   ///< seconds that the lock of a dead host may last
    std::function<void(const std::string&)> say{};   ///< receives a line about a long wait
    int (*lock)(int file, int operation) = nullptr;  ///< in place of flock(), for tests
  };
  /// Local. Waits for a run that is just ending, and for what a dead one left. StorageError while
  /// another run lives.
  RunLock(const std::string& directory, const std::string& log, Options options);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Local, by any thread; one small read and write. Gives a sign of life and throws StorageError
  /// where this run does not own its directory any more, or where that cannot be found out.
  void require_owned() const;
  /// Local and cheap. True once this run has seen that it lost its directory; the signs of life
  /// look for that, too.
  bool lost() const { return lost_; }
  /// Random, and different for every start of every run.
  const std::string& token() const { return token_; }

 private:
  enum class Lock { mine, held, none };
  void acquire();
  /// Tries for so many seconds.
  Lock try_lock(double seconds) const;
  /// True if the owner that wrote `last` writes another sign.
  bool lives(const std::string& last) const;
  /// Puts this run's file in the place of a dead run's, `dead`, or of none. False where another run
  /// was faster.
  bool claim(const std::optional<std::string>& dead);
  /// Raises the number in the file if it is this run's. Returns what is there otherwise; nothing
  /// where this run owns the directory.
  std::optional<std::string> renew() const;
  /// Sets lost_ where another run owns the directory.
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
  mutable std::string successor_;  // why lost_
  mutable std::atomic<bool> lost_ = false;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace choir
