#pragma once
// The unit of work of `choir prepare audio`: the utterances of one shard, which one rank decodes
// and writes, and the record about them (audio_00000.part) that is kept until all shards are
// complete.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/data/audio/audio_decoder.hpp"
#include "src/data/audio/audio_manifest.hpp"
#include "src/data/audio/packed_audio.hpp"

namespace choir {

struct UnitOptions {
  int sample_rate = 16000;
  ChannelChoice channel;
  bool stop_on_bad = true;
};

struct AudioUnit {
  int shard = 0;
  std::vector<AudioEntry> entries;

  std::string pack() const;
  static AudioUnit unpack(const std::string& bytes);
};

/// The result of a unit. Positions of lines are relative to `lines`.
struct UnitResult {
  std::uint64_t fingerprint = 0;
  std::int64_t shard_samples = 0;
  std::uint32_t payload_crc = 0;
  std::vector<AudioCatalog::Utterance> utterances;
  std::string lines;
  std::vector<OmittedEntry> left_out;
  std::vector<std::string> clipped;  ///< ids
  std::int64_t resampled = 0;
};

/// Local. A fingerprint of the entries, the options, and the size and time of every file that they
/// name.
std::uint64_t unit_fingerprint(const AudioUnit& unit, const UnitOptions& options);

/// Local. Decodes the utterances, writes the shard, then its part. `progress` is called with the
/// planned seconds of every finished utterance. Throws AudioError (stop_on_bad), StorageError.
UnitResult run_audio_unit(const AudioUnit& unit, const UnitOptions& options,
                          const std::string& folder, const std::function<void(double)>& progress);

/// Local. Returns the part of a finished shard, or nothing if the shard or its part is missing or
/// damaged.
std::optional<UnitResult> read_unit_part(const std::string& folder, int shard);
std::string unit_part_path(const std::string& folder, int shard);
/// Local. Throws StorageError.
void write_unit_part(const UnitResult& result, const std::string& folder, int shard);

/// Tolerated difference in seconds between the audio and the duration in its manifest, because
/// manifests round.
inline constexpr double kDurationTolerance = 0.1;

}  // namespace choir
