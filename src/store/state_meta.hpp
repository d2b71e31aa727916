#pragma once
// The text of a checkpoint (CheckpointMeta::json), which is the HDF5 attribute "meta" of state.h5.
// It is read by its offset, like the tensors: HDF5 is not safe against malicious files, so it only
// writes checkpoints and never opens one.
#include <string>
#include <vector>

#include "choir/store/manifest.hpp"
#include "src/store/slab_io.hpp"

namespace choir {

/// Finds `text` in a file that HDF5 has just closed. Throws StorageError if the file does not
/// contain it in one piece.
TextRecord locate_meta(const File& state, const std::vector<FileRegion>& regions,
                       const std::string& text);

/// The text of a checkpoint. If the manifest has no record of it (older programs), the header of
/// the attribute is searched in the bytes between the tensors. Throws StorageError.
std::string read_meta(const File& state, const std::vector<FileRegion>& regions,
                      const Manifest& manifest);

}  // namespace choir
