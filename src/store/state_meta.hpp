#pragma once
// The text of a checkpoint (CheckpointMeta::json), which HDF5 keeps as the attribute "meta" of
// state.h5. It is read by its offset, as tensors are: HDF5 is no library for files that somebody
// has made to do harm, so it never opens a checkpoint, it only writes them.
#include <string>
#include <vector>

#include "choir/store/manifest.hpp"
#include "src/store/slab_io.hpp"

namespace choir {

/// Finds `text` in a file that HDF5 has just closed. StorageError when it is not there as it is.
TextRecord locate_meta(const File& state, const std::vector<FileRegion>& regions,
                       const std::string& text);

/// The text of a checkpoint. A manifest without a record of it is of an older program; there, the
/// header of the attribute is looked for in the bytes between the tensors. StorageError.
std::string read_meta(const File& state, const std::vector<FileRegion>& regions,
                      const Manifest& manifest);

}  // namespace choir
