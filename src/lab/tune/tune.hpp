#pragma once
// Tuning of a deck: the hardware that it is tuned for, the search for the largest micro-batch of
// token sequences that the memory plan allows with an unchanged global batch, and a real trial of
// the plan. The plan only counts the allocations of the program; only a trial shows the memory used
// by the driver, libraries and other processes.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "src/lab/plan/layout_plan.hpp"
#include "src/run/run_setup.hpp"

namespace choir {

/// Options of the command line; empty ones are determined automatically.
struct TunePlace {
  std::string memory;  ///< of one rank; see memory_of_word()
  std::string target;
  std::optional<int> ranks, ranks_per_node;
};

/// Parses an amount of memory into bytes: "6" and "6GiB" are GiB; B, KiB, MiB and TiB are also
/// accepted. Throws DeckError.
double memory_of_word(const std::string& word);

/// Sets ranks and target of a case with a known deck: under mpiexec those of this job, with the
/// least memory of any rank. Threads are set as in training. Returns the source of the memory
/// limit. Collective over the world. Throws DeckError.
std::string take_place(const TunePlace& place, Mesh& mesh, PlanCase& to);

struct TunedMicroBatch {
  struct Row {
    std::int64_t micro = 0, accum = 0;
    double bytes = 0;
    bool fits = false;
    std::vector<std::string> changes;  ///< changes to the deck, as overrides
  };
  std::vector<Row> rows;  ///< every micro-batch that was planned, ascending
  BatchSizes was, batch;
  double memory_limit = 0;
  std::string limited_by;  ///< "memory", or another limit
  /// The changes of the largest micro-batch that fits.
  const std::vector<std::string>& changes() const;
};

/// Tries micro-batches that divide the share of a data-parallel rank. Throws DeckError, with the
/// numbers, if the smallest is too large, and for a reproducible deck, because micro-batches affect
/// its result.
TunedMicroBatch tune_micro_batch(const PlanCase& request, const DeckVariants& variants);

/// A table of the planned micro-batches.
std::string to_string(const TunedMicroBatch& tuned);

struct StepProbe {
  bool ran = false;
  std::string why;     ///< reason if it did not run
  double planned = 0;  ///< planned bytes of the fullest rank
  /// Memory growth of the rank that grew most: on a GPU the used memory of its GPU, else resident
  /// memory.
  double taken = 0;
  double seconds = 0;              ///< duration of a step on the slowest rank
  std::int64_t micro_batches = 0;  ///< micro-batches of that step per rank
};

/// A micro-batch size of token sequences that was tried.
struct ProbedMicroBatch {
  std::int64_t micro = 1;
  StepProbe probe{};
  double seconds_per_sequence() const {
    return probe.seconds / static_cast<double>(micro * probe.micro_batches);
  }
};
/// The index of the fastest per sequence of those that ran; of equal ones the first. Pure.
std::size_t fastest_of(const std::vector<ProbedMicroBatch>& probed);
/// "the fastest that ran: train.micro_batch_size 4 (1.20 ms a sequence; the largest, 12: 1.80 ms)".
/// Pure.
std::string choice_text(const std::vector<ProbedMicroBatch>& probed);

/// Runs three steps of full micro-batches of each shape (no shapes: the family's only one) with
/// silence or token 0, and with no more micro-batches than a pipeline has in flight, unless
/// `samples` need more: the times of two sizes are comparable if their steps have as many samples,
/// because every step has one update. The time is that of the faster of the last two. The
/// vocabulary size of `deck` is known, and the device of `place` is open. The models that score the
/// evaluations of `data` (nullptr: none) are planned and loaded, as in training. If memory is
/// missing at the start, all ranks agree on it and the result has the reason. A later failure is in
/// the result if there is one rank; with several, the failing rank throws and the program ends.
/// Collective over the mesh of `place` and that of the data.
StepProbe probe_step(const Deck& deck, const std::vector<BatchShape>& shapes,
                     const std::vector<BatchShape>& evaluation_shapes, Workplace& place,
                     std::int64_t samples = 0, TrainingData* data = nullptr);

/// Formats a probe: "ran, 12 ms a step of 2 micro-batches; planned 1.0 MiB a rank, taken 1.2 MiB".
std::string to_string(const StepProbe& probe);

/// Returns the bytes of host memory that processes can still get: of the system, and within the
/// limit of the control group, for example of a SLURM job. `root` is prepended to /proc and /sys.
/// 0: unknown.
double memory_left(const std::string& root = "");

}  // namespace choir
