#pragma once
// Saves while training goes on: a thread with a communicator of its own copies the pieces
// (Snapshot), looks at what is to be looked at (SaveCheck), and takes the copy through the whole
// protocol of CheckpointStore, the commit included. It is the only thread that lays files out. One
// save is in flight at a time. A process that dies at any instant leaves what a save without a
// thread would have left.
//
// What was given to start() may be read, by anybody, but must not change before await_copied() has
// returned (pieces on a device that the host does not see: before copied() is reached). The thread
// needs nobody for it; who waits helps, so that a wait is never longer than a copy made at once.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "choir/store/snapshot.hpp"
#include "choir/store/store.hpp"

namespace choir {

/// What a save depends on, found out while training goes on.
struct SaveCheck {
  /// Read with the pieces: a digest of each is made, of two CRC-32C.
  std::vector<std::span<const std::byte>> memory{};
  /// Collective over `comm`, by the saver's thread: why the save must not be, the same on every
  /// rank; "" when it may. Without it nothing is asked.
  std::function<std::string(Communicator& comm, std::span<const std::uint64_t> digests)> judge{};
};

class BackgroundSaver {
 public:
  /// Collective. `world` is duplicated. Allocates the snapshot and starts the thread. The hook of
  /// the options is also called at "copy": before the thread copies.
  BackgroundSaver(std::string directory, Communicator& world, Device& device,
                  std::size_t snapshot_bytes, StoreOptions options);
  /// Collective, and waits for the save in flight: also while an exception unwinds, as long as
  /// ranks may be expected to answer, and then leaves the thread to the end of the process. It has
  /// then copied, and reads nothing that was given to start().
  ~BackgroundSaver();
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  /// Collective, with nothing in flight and every result taken.
  void start(const CheckpointMeta& meta, const std::vector<StoredTensor>& tensors,
             SaveCheck check = {});
  /// The same from the memory itself, which must not change until the result is there.
  void start_in_place(const CheckpointMeta& meta, const std::vector<StoredTensor>& tensors);
  /// Local, but no rank returns before all have copied (of devices that the host does not see:
  /// before the copies are queued). Returns at once when that has been, and otherwise copies with
  /// all OpenMP threads. Why the save will not be, by SaveCheck::judge; "" when it goes on.
  std::string await_copied();
  /// Local, after it: what the threads of the slowest rank took of the processors for the copy and
  /// the digests, at most; 0 where a device copies by itself.
  double copy_seconds() const;

  /// A save was started whose result was not taken.
  bool pending() const;
  /// Local. ... and it has not ended.
  bool in_flight() const;
  /// Local. The result of a save that has ended, once, with the seconds of the copy; nothing while
  /// it is in flight. Throws what the save threw.
  std::optional<SaveResult> poll();
  /// Local. Waits until nothing is in flight; while an exception unwinds, not for ever: then false
  /// when other ranks do not answer.
  bool settle();
  /// Local. Waits for it.
  SaveResult wait();

  /// See Snapshot::copied().
  const Event* copied() const;
  std::size_t snapshot_bytes() const;

 private:
  struct Shared;
  void begin(const CheckpointMeta& meta, std::vector<StoredTensor> in_place, bool from_snapshot);
  std::shared_ptr<Shared> shared_;
  bool pending_ = false, given_up_ = false;
};

}  // namespace choir
