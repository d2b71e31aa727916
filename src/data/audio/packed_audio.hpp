#pragma once
// Samples of the recordings of a catalog, one after the other, for work that is done once.
#include <cstdint>
#include <vector>

#include "choir/data/audio/audio_catalog.hpp"

namespace choir {

/// Local. Reads a recording and compares its checksum. Throws DataError: missing, truncated,
/// damaged (names the recording).
std::vector<std::int16_t> read_packed_audio(const AudioCatalog& catalog, std::int64_t recording);

}  // namespace choir
