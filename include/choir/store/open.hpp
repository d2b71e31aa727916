#pragma once
// Finding, verifying and reading checkpoints: by any number of ranks, whatever number wrote them.
// Every offset is known from the manifest, which rank 0 reads; HDF5 opens no checkpoint.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/store/manifest.hpp"
#include "choir/store/stored_tensor.hpp"

namespace choir {

/// Called on every rank with its own share while bytes move.
using PhaseProgress = std::function<void(const char* phase, std::int64_t done, std::int64_t total)>;

/// A checkpoint that was not taken although it is newer.
struct PassedOver {
  enum class Why {
    damaged,     ///< incomplete, or its bytes are not those that were saved
    unreadable,  ///< the system refuses to read it: permissions, I/O errors, a link to nothing
    abandoned,   ///< of a branch that the run has left, see Branch
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

  /// True if a newer checkpoint of this branch may exist: whoever continues from here leaves it.
  bool leaves_newer() const;
};

/// `sizes` reads the manifest, the sizes and HDF5's own bytes; `checksums` every byte, each rank
/// its share.
enum class Verify { sizes, checksums };

/// Which tensors of a checkpoint with a good manifest are as they were written. Same on every rank.
struct Verification {
  std::vector<bool> tensor_good;  ///< in the order of the manifest
  std::string damage;             ///< "" when all is good, else names the tensors
  bool good() const { return damage.empty(); }
};

/// Collective. The newest of the current branch that verifies; nothing when the folder holds no
/// checkpoint at all. StorageError that lists all with their reasons when none can be used.
std::optional<Checkpoint> find_newest_valid(const std::string& folder, Communicator& world,
                                            Verify verify = Verify::checksums,
                                            const PhaseProgress& progress = {});

/// Collective. `path` is a checkpoint (or `latest`), a folder of checkpoints or a run directory; of
/// a folder the newest valid. StorageError when there is none, or the named one is damaged.
Checkpoint open_checkpoint(const std::string& path, Communicator& world,
                           Verify verify = Verify::checksums, const PhaseProgress& progress = {});

/// Collective. Reads every byte of the tensors. StorageError when the file cannot be read.
Verification verify_checkpoint(const std::string& path, const Manifest& manifest,
                               Communicator& world, const PhaseProgress& progress = {});

/// Local. Whether the tensor can be filled from what is stored: the same shape and type, or another
/// type of reals where it converts.
bool is_loadable(const TensorRecord& record, const StoredTensor& tensor);

/// Collective. Fills the pieces of `tensors`. StorageError naming tensors that are missing, of
/// another shape or dtype, or stored but not wanted; of the latter only names that begin with
/// `scope` count
/// (`generate` wants "parameters/" alone). Such errors come before any byte is read.
void load_checkpoint(const Checkpoint& checkpoint, const std::vector<StoredTensor>& tensors,
                     Communicator& world, const std::string& scope = "",
                     const PhaseProgress& progress = {});

/// Collective. The same of all tensors of the checkpoint, where all ranks of `sharers` (among
/// `world`) want equal pieces: one of them reads, and tells the others.
void load_shared_checkpoint(const Checkpoint& checkpoint, const std::vector<StoredTensor>& tensors,
                            Communicator& world, Communicator& sharers,
                            const PhaseProgress& progress = {});

/// Local. The HDF5 that runs, and the one that this program was compiled with.
std::pair<std::string, std::string> hdf5_versions();

}  // namespace choir
