#pragma once
// A job of many ranks, rehearsed on one process: it plays one rank after the other, with
// communicators that act as if every other rank held and did what this one does. Nothing is sent.
// What each rank calls and moves is noted, by phase and by group.
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

/// What this rank did with one group of ranks in a phase, as CommTraffic counts it.
struct RehearsedGroup {
  std::string name;
  int ranks = 1;
  std::int64_t calls = 0;
  double bytes = 0;
};

struct RehearsedPhase {
  std::string name;
  double seconds = 0;
  std::int64_t resident = 0;    ///< bytes of this process when the phase ended
  std::int64_t file_calls = 0;  ///< reads and writes of files
  double file_bytes = 0;
  std::vector<RehearsedGroup> groups{};

  std::int64_t calls() const;
  double bytes() const;
};

/// The book of one rank. Safe for several threads.
class Rehearsal {
 public:
  /// `script` is a file with what rank 0 tells the others in broadcasts: who plays rank 0 writes
  /// it, and must come first; the others read it. StorageError when that cannot be done.
  Rehearsal(int rank, std::string script);

  /// Local: from now on everything belongs to this phase. One that was entered before goes on.
  void enter(std::string_view phase);
  /// Local: the phases in the order in which they began. Nothing is noted afterwards. Rank 0 writes
  /// the script.
  std::vector<RehearsedPhase> finish();

  // For the communicators.
  void count(const std::string& group, int ranks, std::size_t bytes);
  void say(const std::string& group, const void* data, std::size_t bytes);
  /// What the root of this group said when rank 0 played it; zeros where that was nothing.
  /// CommError when it said another number of bytes: ranks do not make the same calls.
  void hear(const std::string& group, void* data, std::size_t bytes);

 private:
  /// What /proc says of this process so far.
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

/// The book that a communicator notes its calls in, or nullptr: then its other ranks are real. Who
/// adds up over ranks what each has a different share of passes no verdict on a sum in a rehearsal.
Rehearsal* rehearsal_of(const Communicator& communicator);

}  // namespace choir
