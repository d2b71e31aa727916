#pragma once
// The MD5 of all samples that a FLAC file stores in its header (RFC 9639, section 8.2). libsndfile
// does not compare it, and damage that leaves the frames readable shows only there.

#include <string>

namespace choir {

/// Decodes a FLAC file and compares its samples with the MD5 that its encoder stored. Returns a
/// description of the difference; "" if there is none, for a file without that checksum, and for
/// other formats.
std::string flac_checksum_fault(const std::string& path);

}  // namespace choir
