#pragma once
// Finding, verifying and reading checkpoints, by any number of ranks independent of the number that
// wrote them. All offsets come from the manifest, which rank 0 reads; HDF5 never opens a
// checkpoint.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "src/store/manifest.hpp"
#include "src/store/stored_tensor.hpp"

namespace choir {

/// Called on every rank with the progress of its own share.
using PhaseProgress = std::function<void(const char* phase, std::int64_t done, std::int64_t total)>;

/// A checkpoint that was skipped although it is newer.
struct PassedOver {
  enum class Why {
    damaged,     ///< incomplete, or its bytes differ from those saved
    unreadable,  ///< the system refuses to read it: permissions, I/O errors, a link to nothing
    abandoned,   ///< belongs to a branch that the run has left, see Branch
    baseless,    ///< the base that has its frozen weights is gone or was changed, see BaseFile
  };
  Why why = Why::damaged;
  std::string reason;  ///< "step_00000200: damaged: tensor parameters/w (crc32c ...)"
};

/// A checkpoint that was found; the same on every rank.
struct Checkpoint {
  std::string path;
  Manifest manifest;
  std::string json;  ///< CheckpointMeta::json
  std::vector<PassedOver> skipped;

  /// True if a newer checkpoint of this branch may exist: a run that continues from here leaves it.
  bool leaves_newer() const;
};

/// `sizes` reads the manifest, the sizes and HDF5's own bytes; `checksums` every byte, each rank
/// its share.
enum class Verify { sizes, checksums };

/// The tensors of a checkpoint with a valid manifest whose bytes are as they were written. Equal on
/// every rank.
struct Verification {
  std::vector<bool> tensor_good;  ///< in the order of the manifest
  std::string damage;             ///< "" if all are good, else names the tensors
  bool good() const { return damage.empty(); }
};

/// Collective. Returns the newest checkpoint of the current branch that verifies; std::nullopt if
/// the folder contains no checkpoint at all. Throws a StorageError that lists all of them with
/// their reasons if none can be used.
std::optional<Checkpoint> find_newest_valid(const std::string& folder, Communicator& world,
                                            Verify verify = Verify::checksums,
                                            const PhaseProgress& progress = {});

/// Collective. `path` is a checkpoint (or `latest`), or a folder of checkpoints or a run directory,
/// whose newest valid one is opened. Throws StorageError if there is none, or if the named one is
/// damaged.
Checkpoint open_checkpoint(const std::string& path, Communicator& world,
                           Verify verify = Verify::checksums, const PhaseProgress& progress = {});

/// Collective. Reads every byte of the tensors, and of the bases of an opened checkpoint, whose
/// faults are part of `damage`. Throws StorageError if a file cannot be read.
Verification verify_checkpoint(const std::string& path, const Manifest& manifest,
                               Communicator& world, const PhaseProgress& progress = {});

/// Local. The record of a stored tensor under another name in a manifest of a run that takes it
/// from this checkpoint, added to the file that has it: the checkpoint or one of its bases.
void refer_to(std::vector<BaseFile>& bases, const Checkpoint& checkpoint,
              const std::string& stored_name, const std::string& name);

/// Local. True if the tensor can be filled from the stored one: equal shape and type, or another
/// type of reals if it converts.
bool is_loadable(const TensorRecord& record, const StoredTensor& tensor);

/// Local. Throws the StorageError that load_checkpoint() throws before it reads any byte.
void require_matching(const Checkpoint& checkpoint, const std::vector<StoredTensor>& tensors,
                      const std::string& scope);

/// Collective. Fills the pieces of `tensors`. Throws a StorageError that names tensors that are
/// missing, of another shape or dtype, or stored but not requested; of the latter only names that
/// begin with `scope` count (`generate` requests only "parameters/"). Such errors are thrown before
/// any byte is read.
void load_checkpoint(const Checkpoint& checkpoint, const std::vector<StoredTensor>& tensors,
                     Communicator& world, const std::string& scope = "",
                     const PhaseProgress& progress = {});

/// Collective. The same for all tensors of the checkpoint if all ranks of `sharers` (a part of
/// `world`) request equal pieces: one of them reads and broadcasts to the others.
void load_shared_checkpoint(const Checkpoint& checkpoint, const std::vector<StoredTensor>& tensors,
                            Communicator& world, Communicator& sharers,
                            const PhaseProgress& progress = {});

/// Local. The versions of HDF5 at run time and at compile time.
std::pair<std::string, std::string> hdf5_versions();

}  // namespace choir
