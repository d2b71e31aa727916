#pragma once
// The HDF5 structure of state.h5. Only one rank calls HDF5, from one thread: it lays out the file
// and closes it. The bytes of the tensors are written without HDF5 (slab_io.hpp). h5dump can read
// the whole file; choir itself never reads through HDF5 (state_meta.hpp).
#include <cstdint>
#include <string>
#include <vector>

#include "choir/store/manifest.hpp"
#include "choir/store/stored_tensor.hpp"

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

}  // namespace choir
