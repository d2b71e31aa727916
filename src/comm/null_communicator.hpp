#pragma once
// Communicators without other ranks, for jobs larger than this machine. A null communicator only
// counts: data stay unchanged, blocks are reserved but not touched, and its calls may be recorded
// in the journal of a planned step. In a rehearsal one process plays the ranks of a job one after
// the other, with communicators that behave as if every other rank held the same data and did the
// same: nothing is sent, and the calls and bytes of each rank are recorded by phase and by group.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/device/device.hpp"
#include "src/device/null_device.hpp"

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

/// traffic() counts calls and bytes as the real communicators do; seconds stay 0. With a device,
/// which must outlive the communicator, blocks are memory of that device. Local.
std::unique_ptr<Communicator> make_null_communicator(const std::string& name, int rank, int size,
                                                     Device* device = nullptr);

/// The same for host memory, with results: sums are sums of equal terms, gathers repeat the data of
/// this rank, broadcasts come from the script of `book`, and messages are zeros. `book` must
/// outlive the communicator. Local.
std::unique_ptr<Communicator> make_rehearsed_communicator(const std::string& name, int rank,
                                                          int size, Rehearsal& book);

/// Records every later call in `journal` as a call of group number `group`; nullptr stops the
/// recording. Does nothing for a communicator that is not of Mesh::planned, or has one rank. Local.
void journal_calls(Communicator& communicator, WorkJournal* journal, int group);

/// Later calls on these bytes, which a device allocated in a plan, are recorded as calls on memory
/// that the communicator allocated. Does nothing for a communicator that is not of Mesh::planned.
/// Local.
void count_as_allocated(Communicator& communicator, const void* data, std::size_t bytes);

}  // namespace choir
