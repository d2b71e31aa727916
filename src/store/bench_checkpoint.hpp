#pragma once
// Benchmark of saves and loads against plain reads and writes of the same bytes. The variants
// alternate within one run, so that other users of a disk slow all of them. Counting follows IOR:
// bytes are those of all ranks, a time is that of the slowest rank from a barrier on, every write
// includes fsync, and a rate is bytes over the whole time.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "src/store/background_saver.hpp"
#include "src/store/stored_tensor.hpp"

namespace choir {

struct CheckpointBenchCase {
  /// This rank's pieces, as they are saved. Their contents are overwritten.
  std::vector<StoredTensor> saved;
  /// All pieces of the same tensors on this rank, including replicas saved by other ranks.
  std::vector<StoredTensor> held;
  Device* device = nullptr;  ///< of the pieces outside host memory
  /// Conditions of an asynchronous save, created before each one; may be empty. Collective.
  std::function<SaveCheck()> check;
  /// A training step during an asynchronous save; calls `wait` before it changes the saved state.
  /// May be empty. Collective.
  std::function<void(const std::function<void()>& wait)> meanwhile;
  std::string folder;  ///< must exist; a directory inside it is created and removed
  int rounds = 5;
  std::int64_t transfer_bytes = 1 << 20;  ///< of one plain read or write
};

/// Times in seconds, each that of the slowest rank.
struct AccessRound {
  double open = 0;  ///< including work before the bytes: layout of a save, verification of a load
  double transfer = 0;  ///< until the system has accepted the last byte
  double sync = 0;      ///< fsync
  double close = 0;     ///< including the commit of a save
  double total = 0;
};

struct AccessSpeed {
  /// "write" and "read": plain, one file with a contiguous part for each rank. "save" and "load":
  /// the whole protocol including checksums. "async": the same save by a thread, from its start to
  /// its end, during training if a step is given. "stall": the part of it for which training waits;
  /// open is its start, transfer is the wait of the first update, or without training the copy.
  std::string access;
  std::vector<AccessRound> rounds;
  std::int64_t wrong = 0;  ///< elements read with a wrong value, all ranks

  double seconds() const;  ///< median of the totals
};

/// Equal on every rank.
struct CheckpointBench {
  int ranks = 1;
  std::int64_t bytes = 0, most_of_a_rank = 0, tensors = 0, transfer_bytes = 0;
  std::vector<AccessSpeed> rows;
  std::vector<double> steps;  ///< seconds of the steps during saves, slowest rank
  /// The first step of each save without its wait for the copy: the steps that the copy slowed.
  std::vector<double> first_steps;
  double cached = 0;     ///< share of a file in memory when its first read began
  double copy_rate = 0;  ///< bytes/s read and written by a copy on all ranks at once, slowest rank

  const AccessSpeed& row(const std::string& access) const;
  bool valid() const;
  /// Ratios of the totals, one per round.
  std::vector<double> ratios(const std::string& over, const std::string& under) const;
  /// The lower bound of the stall: the bytes of a rank are read once and written once.
  double stall_floor() const;
};

/// Collective. Throws StorageError on every rank, and leaves nothing behind, if the folder cannot
/// be written, has too little space, or an access fails.
CheckpointBench bench_checkpoint(Communicator& world, const CheckpointBenchCase& request);

// Pseudo-random contents as a function of (tensor, element): every rank can write and check its
// pieces alone, and replicas are equal.

void fill_pieces(const std::vector<StoredTensor>& tensors);
/// Overwrites the contents with zeros.
void spoil_pieces(const std::vector<StoredTensor>& tensors);
/// Number of elements that differ from those of fill_pieces().
std::int64_t wrong_elements(const std::vector<StoredTensor>& tensors);

}  // namespace choir
