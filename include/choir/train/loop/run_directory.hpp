#pragma once
// The files of a run: deck.json, start.txt, log.txt, metrics.jsonl, checkpoints/, samples/, and on
// GPUs products.json.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "choir/core/log.hpp"

namespace choir {

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
  /// Writes by temporary file and rename. StorageError.
  void write_deck(const std::string& json) const;
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
