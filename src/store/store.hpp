#pragma once
// Saves and loads named logical tensors: any layout writes, any layout reads.
//
//   <run>/checkpoints/step_00000100/{state.h5, manifest.json}
//
// Save: step_N.TAG.tmp/ -> one rank lays out state.h5 -> its space is reserved -> every rank writes
// its slabs -> fsync -> CRCs agreed -> manifest.json -> fsync -> rename -> fsync of the parent ->
// `latest`
// -> prune. After a kill at any instant, the last complete checkpoint is loadable. Costs:
// every byte passes once from memory to the page cache (and through one CRC) and once to the disk;
// no second copy of the state in memory, one chunk of 4 MiB per rank for tensors on a device.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "src/store/directory.hpp"
#include "src/store/open.hpp"
#include "src/store/stored_tensor.hpp"

namespace choir {

/// Called at the named instants of a save, for tests that kill or throw there and for fault
/// injection. In this order: "layout" "reserve" "write" (in the middle of this rank's bytes)
/// "fsync" "written" "manifest" "rename" ("replace" between the two renames, if the step existed)
/// "latest" "prune".
using FaultHook = std::function<void(const char* instant)>;

struct StoreOptions {
  Retention retention;
  FaultHook fault;
  PhaseProgress progress;  ///< phases "save", "verify", "load"
  /// Called on rank 0 before files are laid out, before a commit and before every removal. Throws
  /// StorageError if the folder belongs to another run by now; then the save fails.
  std::function<void()> require_owned;
  /// See CheckpointDirectory; equal on every rank.
  std::string tag;
  /// For a background thread: ranks that wait for slower ones sleep meanwhile.
  bool patient = false;
};

/// Equal on every rank, except for `pruned` and `warnings`, which are set on rank 0.
struct SaveResult {
  bool saved = false;
  std::string reason;  ///< the failure: rank, host, path, the system's error, the cure
  std::string path;
  std::int64_t bytes = 0;  ///< of all tensors
  double seconds = 0;
  double layout_seconds = 0, write_seconds = 0, fsync_seconds = 0, commit_seconds = 0;
  double prune_seconds = 0;
  std::vector<std::int64_t> pruned;
  /// The save is valid, but `latest` or pruning failed.
  std::vector<std::string> warnings;

  double bytes_per_second() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
};

class CheckpointStore {
 public:
  /// Local; touches nothing. `world` must outlive the store.
  CheckpointStore(std::string directory, Communicator& world, StoreOptions options = {});

  /// Collective, before training. Removes leftovers of a killed run and completes an interrupted
  /// replacement. Returns lines for the log. Only the owner of the run directory may call it.
  std::vector<std::string> recover();

  /// Collective. A failure on any rank (disk full, I/O error, directory not writable) is agreed on
  /// by all ranks, removes the temporary directory and is returned as a reason. Throws only for
  /// programming errors (lists that differ between ranks, pieces that do not cover the tensor
  /// exactly once) and broken communication.
  SaveResult save(const CheckpointMeta& meta, const std::vector<StoredTensor>& tensors);

  /// Collective. See choir::find_newest_valid.
  std::optional<Checkpoint> find_newest_valid(Verify verify = Verify::checksums);

  /// Collective. See load_checkpoint.
  void load(const Checkpoint& checkpoint, const std::vector<StoredTensor>& tensors,
            const std::string& scope = "");

  /// Collective. See load_shared_checkpoint.
  void load_shared(const Checkpoint& checkpoint, const std::vector<StoredTensor>& tensors,
                   Communicator& sharers);

  /// Local. Steps with a directory, newest first, unverified.
  std::vector<std::int64_t> list() const { return directory_.steps(); }
  const CheckpointDirectory& directory() const { return directory_; }

 private:
  struct Attempt;
  void lay_out(Attempt& attempt) const;
  void write_slabs(Attempt& attempt) const;
  void commit(Attempt& attempt) const;
  void finish(Attempt& attempt) const;
  void at(const char* instant) const;
  void require_owned() const;
  std::string try_together(const std::function<void()>& action) const;

  CheckpointDirectory directory_;
  Communicator& world_;
  StoreOptions options_;
};

}  // namespace choir
