#pragma once
// What saving and loading costs, against plain reads and writes of the same bytes: the ways take
// turns in one run, so that a disk that others use too slows all of them. As IOR counts: the bytes
// are those of all ranks, a time is that of the slowest rank from a barrier on, fsync belongs to
// every write, and a rate is bytes over the whole time.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/store/background_saver.hpp"
#include "choir/store/stored_tensor.hpp"

namespace choir {

struct CheckpointBenchCase {
  /// This rank's pieces, as they are saved: what is in them is lost.
  std::vector<StoredTensor> saved;
  /// All that this rank holds of the same tensors, replicas of what others save included.
  std::vector<StoredTensor> held;
  Device* device = nullptr;  ///< of the pieces that are not the host's
  /// What an asynchronous save depends on, made before each; may be empty. Collective.
  std::function<SaveCheck()> check;
  /// A training step, while an asynchronous save is in flight: calls `wait` before it changes what
  /// is saved. May be empty. Collective.
  std::function<void(const std::function<void()>& wait)> meanwhile;
  std::string folder;  ///< exists; a directory in it is made and removed again
  int rounds = 5;
  std::int64_t transfer_bytes = 1 << 20;  ///< of one plain read or write
};

/// Seconds, each the slowest rank's.
struct AccessRound {
  double open = 0;      ///< and what precedes the bytes: layout of a save, verification of a load
  double transfer = 0;  ///< until the last byte is with the system
  double sync = 0;      ///< fsync
  double close = 0;     ///< of a save its commit
  double total = 0;
};

struct AccessSpeed {
  /// "write" and "read": plain, one file, a contiguous part of it to each rank. "save" and "load":
  /// the whole protocol, checksums included. "async": the same save by a thread, from its start to
  /// its end while training goes on, if it is given. "stall": the part of it that training waits
  /// for; open is its beginning, transfer what the first update waits for, or without training the
  /// copy.
  std::string access;
  std::vector<AccessRound> rounds;
  std::int64_t wrong = 0;  ///< elements that were read and are not what was written, all ranks

  double seconds() const;  ///< median of the totals
};

/// Equal on every rank.
struct CheckpointBench {
  int ranks = 1;
  std::int64_t bytes = 0, most_of_a_rank = 0, tensors = 0, transfer_bytes = 0;
  std::vector<AccessSpeed> rows;
  std::vector<double> steps;  ///< seconds of those made while saves were in flight, slowest rank
  /// The first of each save, less what it waited for the copy: those that the copy slowed.
  std::vector<double> first_steps;
  double cached = 0;     ///< share of a file that memory still held when its first read began
  double copy_rate = 0;  ///< bytes/s read and written by a copy, of the slowest rank, all at once

  const AccessSpeed& row(const std::string& access) const;
  bool valid() const;
  /// One per round.
  std::vector<double> ratios(const std::string& over, const std::string& under) const;
  /// The floor of the stall: the bytes of a rank are read once and written once.
  double stall_floor() const;
};

/// Collective. Throws StorageError on every rank, with nothing left behind, when the folder cannot
/// be written, has no room, or fails on the way.
CheckpointBench bench_checkpoint(Communicator& world, const CheckpointBenchCase& request);

}  // namespace choir
