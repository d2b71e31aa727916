#pragma once
// Saves in the background of training. A thread with its own communicator copies the pieces
// (Snapshot), runs the checks of the save (SaveCheck), and saves the copy by the whole protocol of
// CheckpointStore including the commit. It is the only thread that lays out files. One save is in
// flight at a time. A process that dies at any instant leaves the same files as with a synchronous
// save.
//
// The arguments of start() may be read by anybody, but must not change until await_copied() has
// returned (pieces on a device that is not host-visible: until copied() is reached). The thread
// works without help, but callers of await_copied() help it, so that the wait is never longer than
// an immediate copy.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/store/snapshot.hpp"
#include "src/store/store.hpp"

namespace choir {

/// The conditions of a save, checked in the background of training.
struct SaveCheck {
  /// Memory that is read together with the pieces; each span gets a digest of two CRC-32C.
  std::vector<std::span<const std::byte>> memory{};
  /// Collective over `comm`, called by the saver's thread. Returns the reason why the save must not
  /// be made, equal on every rank, or "" if it may. If empty, nothing is checked.
  std::function<std::string(Communicator& comm, std::span<const std::uint64_t> digests)> judge{};
};

class BackgroundSaver {
 public:
  /// Collective. Duplicates `world`, allocates the snapshot and starts the thread. The hook of the
  /// options is also called at "copy", before the thread copies.
  BackgroundSaver(std::string directory, Communicator& world, Device& device,
                  std::size_t snapshot_bytes, StoreOptions options);
  /// Collective. Waits for the save in flight; during stack unwinding only as long as ranks may be
  /// expected to answer, and then leaves the thread running until the process ends. By then the
  /// thread has copied and no longer reads the arguments of start().
  ~BackgroundSaver();
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  /// Collective. No save may be in flight, and every result must have been taken.
  void start(const CheckpointMeta& meta, const std::vector<StoredTensor>& tensors,
             SaveCheck check = {});
  /// Saves from the memory itself without a copy; it must not change until the result is available.
  void start_in_place(const CheckpointMeta& meta, const std::vector<StoredTensor>& tensors);
  /// Local, but no rank returns before all have copied (devices that are not host-visible: before
  /// the copies are queued). Returns at once if that has happened, and otherwise copies with all
  /// OpenMP threads. The result is the reason from SaveCheck::judge why the save is not made, or ""
  /// if it continues.
  std::string await_copied();
  /// Local, after await_copied(): an upper bound of the CPU seconds of the slowest rank for the
  /// copy and the digests; 0 if a device copies by itself.
  double copy_seconds() const;

  /// True if a save was started whose result was not taken yet.
  bool pending() const;
  /// Local. True if that save has not ended.
  bool in_flight() const;
  /// Local. Returns the result of a finished save once, with the seconds of the copy; std::nullopt
  /// while it is in flight. Throws the exception of the save.
  std::optional<SaveResult> poll();
  /// Local. Waits until nothing is in flight. During stack unwinding the wait is limited: returns
  /// false if other ranks do not answer.
  bool settle();
  /// Local. Waits for the save and returns its result.
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
