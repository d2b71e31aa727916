#pragma once
// Saves while training goes on: the pieces are copied (Snapshot), and a thread with a communicator
// of its own takes the copy through the whole protocol of CheckpointStore, the commit included.
// It is the only thread that lays files out. One save is in flight at a time. A process that dies
// at any instant leaves what a save without a thread would have left.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "choir/checkpoint/snapshot.hpp"
#include "choir/checkpoint/store.hpp"

namespace choir {

class BackgroundSaver {
 public:
  /// Collective. `world` is duplicated. Allocates the snapshot and starts the thread.
  BackgroundSaver(std::string directory, Communicator& world, Device& device,
                  std::size_t snapshot_bytes, StoreOptions options);
  /// Collective, and waits for the save in flight: also while an exception unwinds, as long as
  /// ranks may be expected to answer, and then leaves the thread to the end of the process.
  ~BackgroundSaver();
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  /// Collective, with nothing in flight and every result taken. Copies and starts to write.
  void start(const CheckpointMeta& meta, const std::vector<StoredTensor>& tensors);
  /// The same from the memory itself, which must not change until the result is there.
  void start_in_place(const CheckpointMeta& meta, const std::vector<StoredTensor>& tensors);

  /// A save was started whose result was not taken.
  bool pending() const;
  /// Local. ... and it has not ended.
  bool in_flight() const;
  /// Local. The result of a save that has ended, once; nothing while it is in flight. Throws what
  /// the save threw.
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
