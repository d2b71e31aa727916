#pragma once
// One sentence on how a run spent its time, for users who want it to be faster. One possible reason
// is measured here: whether this process has the cores that it computes on, by Linux's accounts of
// the time that runnable threads waited for a core and of the time that a hypervisor took.

#include <cstdint>
#include <string>
#include <vector>

#include "src/train/step/phase_clock.hpp"

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

struct RunTimes {
  PhaseTotals phases;               ///< of the rank that prints
  std::vector<double> own;          ///< seconds per step of each rank, without waiting for others
  std::vector<double> outside;      ///< the part of `own` outside forward and backward
  std::vector<double> deviation;    ///< standard deviation of `own` over the steps
  std::vector<CoreShortage> cores;  ///< of each rank, in the whole run
  std::vector<std::string> hosts;   ///< host of each rank
  std::vector<std::string> crowded{};  ///< see busy_cores()
  /// Fraction of the wall time outside the start, steps, evaluations and saves.
  double between_steps = 0;
};

/// Returns the first applicable diagnosis of: a slow rank, cores used by other processes, slow
/// data, a slow network, time between steps, kernels. A rank is slow if it exceeds the others by
/// more than the spread of its steps and by more than it waited for cores. "" for a run without
/// steps; after few steps the text says that they show nothing. Pure.
std::string diagnosis(const RunTimes& times);

/// Describes the rank that lacks CPU cores most: "rank 1 (host n2): its threads waited 43 % of the
/// time for a CPU core; ..."; "" if no rank lacks a tenth of its time. `crowded` has
/// shared_cores_note() for each rank whose host has more threads of ranks than cores: its first
/// part, up to a colon, is then named as the cause; otherwise other processes are. Pure.
std::string busy_cores(const std::vector<CoreShortage>& cores,
                       const std::vector<std::string>& hosts,
                       const std::vector<std::string>& crowded = {});

}  // namespace choir
