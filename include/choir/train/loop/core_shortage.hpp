#pragma once
// Whether this process has the cores that it computes on: by Linux's accounts of the time that
// threads which could run had none, and of what a hypervisor took. Local.
#include <cstdint>
#include <vector>

namespace choir {

/// What happened between two looks.
struct CoreShortage {
  double seconds = 0;   ///< between the looks
  double waiting = 0;   ///< of it, that the computing thread which waited longest had no core
  double stolen = 0;    ///< of it, given to other virtual machines: mean of the cores it may run on
  double switches = 0;  ///< of all threads, involuntary: somebody else was put in their place

  /// Share of the time, 0 to 1.
  double share() const;
};

class CoreWatch {
 public:
  /// `tasks` and `cores`: others for tests. Where they cannot be read
  /// nothing is ever short.
  explicit CoreWatch(std::vector<int> threads, const char* tasks = "/proc/self/task",
                     const char* cores = "/proc/stat");

  /// Since the look before, or since this was made.
  CoreShortage look();

 private:
  struct Account {
    double time = 0, stolen = 0, switches = 0;
    std::vector<double> waiting;  ///< of each thread
  };
  Account read() const;

  std::vector<int> threads_;
  const char* tasks_;
  const char* cores_;
  Account before_;
};

/// The threads of the team that computes for the thread which calls.
std::vector<int> computing_threads();

}  // namespace choir
