#pragma once
// Changes checkpoints and corrects their checksums, as anybody can.
#include <string>

#include "src/core/hash.hpp"
#include "src/store/manifest.hpp"

namespace choir::test {

/// Corrects all checksums of the manifest for these bytes of state.h5, which must have the size
/// that the manifest gives.
inline void seal(Manifest& manifest, const std::string& state) {
  const auto crc_of = [&](std::int64_t offset, std::int64_t bytes) {
    return crc32c(state.data() + offset, static_cast<std::size_t>(bytes));
  };
  for (TensorRecord& tensor : manifest.tensors)
    tensor.crc32c = crc_of(tensor.offset, tensor.bytes());
  if (manifest.meta) manifest.meta->crc32c = crc_of(manifest.meta->offset, manifest.meta->bytes);
  const auto regions = regions_of(manifest.tensors, manifest.state_bytes);
  std::vector<std::uint32_t> crcs;
  for (const FileRegion& region : regions) crcs.push_back(crc_of(region.offset, region.bytes));
  manifest.state_crc32c = crc_of_file(regions, crcs);
  manifest.structure_crc32c = crc_of_structure(regions, crcs);
}

}  // namespace choir::test
