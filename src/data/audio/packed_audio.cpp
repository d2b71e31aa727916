#include "src/data/audio/packed_audio.hpp"

#include "choir/core/crc32c.hpp"
#include "choir/core/error.hpp"
#include "src/data/posix_file.hpp"

namespace choir {

std::vector<std::int16_t> read_packed_audio(const AudioCatalog& catalog, std::int64_t recording) {
  CHOIR_CHECK(recording >= 0 && recording < catalog.size(), "recording {} of {}", recording,
              catalog.size());
  const AudioCatalog::Utterance& u = catalog[recording];
  const std::string path = catalog.shard_path(u.shard);
  std::vector<std::int16_t> samples(static_cast<std::size_t>(u.samples));
  const std::size_t bytes = samples.size() * sizeof(std::int16_t);
  PosixFile::for_reading(path).read_at(samples.data(), bytes,
                                       AudioCatalog::kHeaderBytes + 2 * u.first);
  if (const std::uint32_t crc = crc32c(samples.data(), bytes); crc != u.crc)
    throw DataError(fmt::format("packed audio '{}' is damaged in recording {} (crc32c {:08x}, "
                                "stored {:08x})",
                                path, recording, crc, u.crc),
                    "prepare the audio again with 'choir prepare audio'");
  return samples;
}

}  // namespace choir
