#pragma once
// Rehearsal of a job of many ranks in one process, which plays one rank after the other with
// communicators that behave as if every other rank held the same data and did the same. Nothing is
// sent. The calls and bytes of each rank are recorded by phase and by group.
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "choir/comm/communicator.hpp"

namespace choir {

/// Calls and bytes of this rank with one group of ranks in a phase, as in CommTraffic.
struct RehearsedGroup {
  std::string name;
  int ranks = 1;
  std::int64_t calls = 0;
  double bytes = 0;
};

struct RehearsedPhase {
  std::string name;
  double seconds = 0;
  std::int64_t resident = 0;    ///< bytes of this process at the end of the phase
  std::int64_t file_calls = 0;  ///< reads and writes of files
  double file_bytes = 0;
  std::vector<RehearsedGroup> groups{};

  std::int64_t calls() const;
  double bytes() const;
};

/// The record of one rank. Thread-safe.
class Rehearsal {
 public:
  /// `script` is a file with the data that rank 0 broadcasts. The process that plays rank 0 must
  /// run first and writes it; the others read it. Throws StorageError if that fails.
  Rehearsal(int rank, std::string script);

  /// Everything from now on belongs to this phase. A phase that was entered before is continued.
  /// Local.
  void enter(std::string_view phase);
  /// Returns the phases in the order in which they began. Nothing is recorded afterwards. Rank 0
  /// writes the script. Local.
  std::vector<RehearsedPhase> finish();

  // Called by the communicators.
  void count(const std::string& group, int ranks, std::size_t bytes);
  void say(const std::string& group, const void* data, std::size_t bytes);
  /// Copies the data that the root of this group broadcast when rank 0 was played, or zeros if
  /// there were none. Throws CommError if their size differs, because then the ranks make different
  /// calls.
  void hear(const std::string& group, void* data, std::size_t bytes);

 private:
  /// Use of resources of this process until now, according to /proc.
  struct Usage {
    double time = 0, file_bytes = 0;
    std::int64_t file_calls = 0;
  };
  static Usage usage();
  void close_phase();
  void read_script();
  void write_script() const;

  std::mutex mutex_;
  int rank_;
  std::string path_;
  std::map<std::string, std::deque<std::string>> script_;
  std::vector<RehearsedPhase> phases_;
  std::size_t current_ = 0;
  bool open_ = false;
  Usage began_;
};

/// The record of a rehearsed communicator; nullptr if its other ranks are real. Code that sums
/// different shares over ranks must not check such a sum in a rehearsal.
Rehearsal* rehearsal_of(const Communicator& communicator);

}  // namespace choir
