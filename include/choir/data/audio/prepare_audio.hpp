#pragma once
// Manifests of speech to a folder of packed audio (choir/data/audio/audio_catalog.hpp).
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/core/log.hpp"
#include "choir/data/audio/audio_decoder.hpp"
#include "choir/data/audio/audio_manifest.hpp"

namespace choir {

struct PrepareAudioOptions {
  ManifestOptions manifest;
  int sample_rate = 16000;
  ChannelChoice channel;      ///< where the manifest does not say
  double shard_minutes = 30;  ///< of audio in a shard, as planned; at least an utterance
  bool stop_on_bad = true;    ///< else bad utterances are left out, up to bad_cap of all
  double bad_cap = 0.01;
};

struct PrepareAudioSummary {
  std::string folder;
  int sample_rate = 0;
  std::int64_t utterances = 0, shards = 0, samples = 0;
  std::int64_t without_text = 0, clipped = 0, resampled = 0;
  std::int64_t left_out = 0;
  double hours_left_out = 0;
  std::map<std::string, std::int64_t> reasons;  ///< of what was left out
  std::vector<std::string> examples;            ///< of what was left out, a few
  bool there_before = false;                    ///< finished by an earlier run
  double seconds = 0;                           ///< of this run
  double audio_seconds = 0;                     ///< decoded by this run, as planned
  double hours() const { return static_cast<double>(samples) / sample_rate / 3600; }
  /// A few lines for people.
  std::string to_string() const;
};

/// Collective over `world`; the ranks share the decoding, shard by shard, and the bytes written do
/// not depend on how many there are. A run that is killed is continued by the same call: shards
/// that are finished stay (the same entries and options, files of the same size and time). The
/// folder opens as an AudioCatalog only when all of it is there. A folder with anything else in it
/// is refused. Throws DataError: a bad utterance (AudioError) unless they are skipped, more than
/// bad_cap of them, nothing left; DeckError: options; StorageError.
PrepareAudioSummary prepare_audio(Communicator& world, Logger& log,
                                  const std::vector<std::string>& manifests,
                                  const std::string& folder, const PrepareAudioOptions& options);

}  // namespace choir
