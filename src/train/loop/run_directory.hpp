#pragma once
// The files of a run: deck.json, start.txt, log.txt, metrics.jsonl, checkpoints/, samples/, and on
// GPUs products.json; and the ownership of its directory by one run at a time. There are two proofs
// of ownership:
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
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "choir/core/log.hpp"
#include "src/core/process.hpp"

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

class RunLock;

class RunDirectory {
 public:
  explicit RunDirectory(std::string path);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string deck() const { return path_ + "/deck.json"; }
  std::string start() const { return path_ + "/start.txt"; }
  std::string log() const { return path_ + "/log.txt"; }
  std::string metrics() const { return path_ + "/metrics.jsonl"; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  std::string products() const { return path_ + "/products.json"; }
  std::string samples() const { return path_ + "/samples"; }
  std::string tensorboard() const { return path_ + "/tensorboard"; }
  /// The checkpoints of all runs beside this one, a line each: FOLDER/checkpoints.log for
  /// FOLDER/NAME; "" for a run that is not in a folder of its own ("NAME").
  std::string checkpoints_of_all() const;
  std::string stop_file() const { return path_ + "/stop_now"; }

  /// Throws the StorageError that create() or the files of a run would cause, as far as it can be
  /// found without creating anything. Local.
  void require_writable() const;
  /// Creates the folders and locks them until destruction (flock on log.txt, if the file system has
  /// locks, and signs of life in in_use). Waits for a run that is about to end, and for one that
  /// another host left, which is announced with `say`. Removes the stop file of an earlier run.
  /// Throws StorageError. Local, by one rank.
  void create(const std::function<void(const std::string&)>& say = {});
  /// Throws StorageError if another run has taken over the directory since create(). A start, a
  /// commit of a checkpoint and the removal of one check this first. Does nothing on ranks without
  /// the lock. Local.
  void require_owned() const;
  /// True once this process has noticed that the directory was taken over. Local and cheap.
  bool lost() const;
  /// A version of require_owned() for threads that may outlive this.
  std::function<void()> ownership() const;
  /// A random token, different for every start; "" on ranks without the lock.
  std::string token() const;
  /// Moves the checkpoints, and a copy of the metrics, to before-1/ (or -2 ...) and returns its
  /// path. Otherwise a run that starts before its own checkpoints would leave two histories in one
  /// directory, and the next run would continue the wrong one. Throws StorageError. Local, by one
  /// rank.
  std::string set_aside() const;
  /// Writes the resolved deck by temporary file and rename. `source` is the file that was given: if
  /// it is the deck.json of this run, the names of the decks that it was made of are kept.
  /// StorageError.
  void write_deck(const std::string& json, const std::string& source) const;
  /// Writes start.txt of the latest start. Throws StorageError.
  void write_start(const std::string& text) const;
  /// Writes samples/step_00000100.txt. Returns false if it cannot be written: a full disk must not
  /// end training.
  bool write_sample(std::int64_t step, const std::string& text) const;

 private:
  std::string path_;
  std::shared_ptr<RunLock> lock_;
};

}  // namespace choir
