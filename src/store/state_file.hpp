#pragma once
// state.h5 as HDF5 sees it. Only one rank ever calls HDF5, from one thread: it lays the file out
// and closes it; the bytes of the tensors are written past HDF5 (slab_io.hpp). h5dump shows it all.
// Nothing is read through HDF5 (state_meta.hpp).
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
