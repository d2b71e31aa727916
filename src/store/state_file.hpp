#pragma once
// The structure of state.h5. Only one rank calls HDF5, from one thread: it lays out the file and
// closes it; the bytes of the tensors are written without HDF5 (slab_io.hpp). h5dump can read the
// whole file. choir itself never reads through HDF5, which is not safe against malicious files: the
// text of a checkpoint (CheckpointMeta::json), which is the attribute "meta", is read by its
// offset, like the tensors.

#include <cstdint>
#include <string>
#include <vector>

#include "src/store/manifest.hpp"
#include "src/store/slab_io.hpp"
#include "src/store/stored_tensor.hpp"

namespace choir {

/// Local. Creates `path` with a contiguous, early allocated, unfilled dataset per tensor (groups by
/// '/') and the attributes "step", "format_version" and "meta" (the JSON text) on "/". Returns the
/// records in the order of `tensors`, without checksums. The file has its final size and is sparse.
/// StorageError.
std::vector<TensorRecord> lay_out_state_file(const std::string& path, const CheckpointMeta& meta,
                                             const std::vector<StoredTensor>& tensors);

/// An upper bound of the size of that file, known before anything is written.
std::int64_t state_file_estimate(const CheckpointMeta& meta,
                                 const std::vector<StoredTensor>& tensors);

/// Finds `text` in a file that HDF5 has just closed. Throws StorageError if the file does not
/// contain it in one piece.
TextRecord locate_meta(const File& state, const std::vector<FileRegion>& regions,
                       const std::string& text);

/// The text of a checkpoint. If the manifest has no record of it (older programs), the header of
/// the attribute is searched in the bytes between the tensors. Throws StorageError.
std::string read_meta(const File& state, const std::vector<FileRegion>& regions,
                      const Manifest& manifest);

}  // namespace choir
