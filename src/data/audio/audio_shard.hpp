#pragma once
// Shards: files of packed 16-bit samples, audio_00000.pcm. AudioCatalog documents the format.
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace choir {

struct AudioShardHeader {
  int sample_rate = 0;
  std::int64_t samples = 0;       ///< includes the zeros between utterances
  std::uint32_t payload_crc = 0;  ///< crc32c of all samples
};

std::string audio_shard_path(const std::string& folder, int shard);

/// Local. Reads and checks the header and the length of the file, but not the samples. Throws
/// DataError for a file that is missing, truncated, too long, or of another kind or version.
AudioShardHeader read_audio_shard_header(const std::string& path);

/// Writes one shard under a temporary name; finish() syncs it and renames it to `path`. If it is
/// destroyed before finish(), nothing remains. Throws StorageError if writing fails.
class AudioShardWriter {
 public:
  /// Utterances begin at multiples of this number of samples.
  static constexpr std::int64_t kAlignment = 32;

  AudioShardWriter(std::string path, int sample_rate);
  ~AudioShardWriter();
  AudioShardWriter(AudioShardWriter&&) noexcept;

  struct Place {
    std::int64_t first = 0;  ///< first sample in the shard
    std::uint32_t crc = 0;   ///< crc32c of the samples
  };
  Place append(std::span<const std::int16_t> samples);
  AudioShardHeader finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace choir
