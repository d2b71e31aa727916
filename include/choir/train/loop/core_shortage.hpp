#pragma once
// Measures whether this process has the cores that it computes on, by Linux's accounts of the time
// that runnable threads waited for a core and of the time that a hypervisor took. Local.
#include <cstdint>
#include <vector>

namespace choir {

/// The shortage between two looks.
struct CoreShortage {
  double seconds = 0;  ///< between the looks
  double waiting = 0;  ///< time for which the computing thread that waited longest had no core
  double stolen =
      0;  ///< time given to other virtual machines: mean over the cores that this process may use
  double switches = 0;  ///< involuntary switches of all threads

  /// Fraction of the time that was lost, 0 to 1.
  double share() const;
};

class CoreWatch {
 public:
  /// `tasks` and `cores` are replaced in tests. If they cannot be read, no shortage is reported.
  explicit CoreWatch(std::vector<int> threads, const char* tasks = "/proc/self/task",
                     const char* cores = "/proc/stat");

  /// The shortage since the last look, or since construction.
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

/// The threads of the OpenMP team of the calling thread.
std::vector<int> computing_threads();

}  // namespace choir
