#pragma once
// manifest.json: the list that makes a directory a checkpoint. It is written last, contains its own
// checksum, and has checksums for every byte of state.h5. Readers take all offsets from it alone
// and check them against the size of the file, since anybody can compute checksums. It names the
// branch of the checkpoint. A run that continues from its newest checkpoint stays on its branch. A
// run that continues from another one, because the newest is damaged or cannot be read or because
// the deck names one, begins a new branch, whose steps replace those after the fork. A checkpoint
// of a branch that the run left is therefore not mistaken for the newest when it can be read again.
// The branch that began last is the current one.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/dtype.hpp"
#include "choir/core/tensor.hpp"

namespace choir {

class CheckpointDirectory;
struct Manifest;

struct Branch {
  /// The history of a branch: it continues `branch` after `step`.
  struct Fork {
    std::string branch;
    std::int64_t step = 0;
  };
  std::string id;           ///< random; "" in checkpoints of versions without branches
  std::int64_t began = 0;   ///< seconds since the epoch, and later than that of its ancestors
  std::vector<Fork> forks;  ///< the ancestors, oldest first; the last one is the parent

  /// True if the checkpoint of this step of `branch` belongs to this branch or its history.
  bool includes(const std::string& branch, std::int64_t step) const;
};

/// Local. A new branch after `parent`, or a run's first one (nullptr); it begins later than every
/// branch that has a checkpoint in the folder.
Branch begin_branch(const Manifest* parent, const CheckpointDirectory& folder);

/// A checkpoint folder as one rank sees it.
struct BranchSurvey {
  struct Step {
    std::int64_t step = 0;
    std::string abandoned;  ///< why the step is not part of the current branch, else ""
  };
  Branch current;           ///< its id is "" if no manifest names a branch
  std::vector<Step> steps;  ///< newest first; unreadable ones are not abandoned
};
/// Local. Reads every manifest.
BranchSurvey survey_branches(const CheckpointDirectory& folder);

inline constexpr int kCheckpointFormat = 1;
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kStateName = "state.h5";

/// Position of one tensor in state.h5: contiguous, row-major, little-endian.
struct TensorRecord {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::int64_t offset = 0;   ///< bytes from the start of the file
  std::uint32_t crc32c = 0;  ///< CRC of its bytes

  std::int64_t bytes() const { return shape.count() * static_cast<std::int64_t>(size_of(dtype)); }
};

/// Position of the text CheckpointMeta::json in state.h5.
struct TextRecord {
  std::int64_t offset = 0, bytes = 0;
  std::uint32_t crc32c = 0;
};
/// Tensors of a checkpoint that are not in its own state.h5, because another checkpoint has them:
/// frozen weights that a run took from its base. A checkpoint of adapters is small for this reason,
/// and unusable without the base.
struct BaseFile {
  std::string path;      ///< absolute path of the base, a checkpoint
  std::string relative;  ///< the same, relative to the folder of this checkpoint
  std::int64_t state_bytes = 0;
  std::uint32_t state_crc32c = 0;  ///< by which the base is recognised: Manifest::state_crc32c
  /// Under their names in this checkpoint; offsets and checksums are those in the base's state.h5.
  std::vector<TensorRecord> tensors;
};

/// The largest size of this text: a deck, a vocabulary and the position in the data are a few MB.
inline constexpr std::int64_t kMostTextBytes = std::int64_t{1} << 28;

struct Manifest {
  std::int64_t step = 0;
  std::string saved_at;  ///< local time
  std::string deck_hash;
  std::string layout;
  std::optional<double> metric;
  Branch branch;                       ///< older manifests have none
  std::int64_t state_bytes = 0;        ///< size of state.h5
  std::uint32_t state_crc32c = 0;      ///< of the whole file
  std::uint32_t structure_crc32c = 0;  ///< of HDF5's own bytes in it, without the tensors
  std::optional<TextRecord> meta;      ///< older programs wrote none
  std::vector<TensorRecord> tensors;   ///< in state.h5
  std::vector<BaseFile> bases;         ///< with the tensors that are elsewhere

  std::string to_text() const;
  /// Throws a StorageError that names the fault: not JSON, checksum, format version, a missing key,
  /// a tensor or text that is outside the file or overlaps another, two tensors of one name.
  static Manifest parse(std::string_view text);

  /// nullptr if there is no tensor of that name, here or in a base.
  const TensorRecord* find(std::string_view name) const;
  /// The tensors in state.h5, and then the tensors of the bases.
  std::vector<TensorRecord> all_tensors() const;
};

/// A range of bytes of state.h5: a tensor, or HDF5's own data between tensors.
struct FileRegion {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  int tensor = -1;  ///< index into Manifest::tensors; -1 is HDF5's own
};

/// The whole file as regions in ascending order, without holes. Tensors of zero bytes have no
/// region. Throws StorageError if two tensors overlap.
std::vector<FileRegion> regions_of(const std::vector<TensorRecord>& tensors,
                                   std::int64_t file_bytes);

/// CRC of the whole file, or of HDF5's own bytes in it, computed from the CRCs of the regions.
std::uint32_t crc_of_file(const std::vector<FileRegion>& regions,
                          const std::vector<std::uint32_t>& crcs);
std::uint32_t crc_of_structure(const std::vector<FileRegion>& regions,
                               const std::vector<std::uint32_t>& crcs);

}  // namespace choir
