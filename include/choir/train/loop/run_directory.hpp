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

  /// Local. Throws what create() and the files of a run would meet, as far as that shows without
  /// making anything. StorageError.
  void require_writable() const;
  /// Local, by one rank. Makes the folders and locks them until destruction (flock on log.txt,
  /// where the file system has locks, and signs of life in in_use). Waits for a run that is just
  /// ending, and for one that another host left, which `say` announces. Removes the stop file of an
  /// earlier run. StorageError.
  void create(const std::function<void(const std::string&)>& say = {});
  /// Local. Throws StorageError where another run has taken the directory over since create(): a
  /// start, a commit of a checkpoint and the removal of one ask this first. Does nothing on ranks
  /// without the lock.
  void require_owned() const;
  /// Local and cheap. True once this process has seen that the directory was taken over.
  bool lost() const;
  /// require_owned() for threads that may outlive this.
  std::function<void()> ownership() const;
  /// Random, and different for every start; "" on ranks without the lock.
  std::string token() const;
  /// Local, by one rank. Moves the checkpoints, and a copy of the metrics, to before-1/ (or -2 ...)
  /// and returns its path: a run that starts behind its own checkpoints would otherwise leave two
  /// histories in one place, and the next would continue the wrong one. StorageError.
  std::string set_aside() const;
  /// Writes by temporary file and rename. StorageError.
  void write_deck(const std::string& json) const;
  /// start.txt, of the start that comes last. StorageError.
  void write_start(const std::string& text) const;
  /// samples/step_00000100.txt. False when it could not be written: a full disk must not end
  /// training.
  bool write_sample(std::int64_t step, const std::string& text) const;

 private:
  std::string path_;
  std::shared_ptr<RunLock> lock_;
};

}  // namespace choir
