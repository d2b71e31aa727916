#pragma once
// Reading of single recordings of a catalog, for work that is done only once.
#include <cstdint>
#include <vector>

#include "choir/data/audio/audio_catalog.hpp"

namespace choir {

/// Local. Reads a recording and verifies its checksum. Throws DataError if it is missing, truncated
/// or damaged; the message names the recording.
std::vector<std::int16_t> read_packed_audio(const AudioCatalog& catalog, std::int64_t recording);

}  // namespace choir
