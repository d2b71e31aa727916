#pragma once
// Preparation of a folder of packed audio (see AudioCatalog) from manifests of speech, its
// completion (manifest, report, index), and reading of its report.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/core/log.hpp"
#include "src/data/audio/audio_decoder.hpp"
#include "src/data/audio/audio_manifest.hpp"
#include "src/data/audio/audio_unit.hpp"

namespace choir {

struct PrepareAudioOptions {
  ManifestOptions manifest;
  int sample_rate = 16000;
  ChannelChoice channel;      ///< channel of lines that name none
  double shard_minutes = 30;  ///< planned audio per shard, at least one utterance
  bool stop_on_bad = true;    ///< if false, bad utterances are left out, up to a share of bad_cap
  double bad_cap = 0.01;
  std::string cap_name = "--bad-cap";  ///< the option of bad_cap, for messages
  bool keeps_shards = true;  ///< the caller keeps the finished shards of a run that is refused
  /// The end of the hint to a bad utterance: how to continue without it.
  std::string skip_hint = "--on-bad skip leaves such utterances out, up to --bad-cap of them";
  /// The hint to a recording with several channels of which none was chosen; "": --channel.
  std::string channel_hint{};
};

struct PrepareAudioSummary {
  std::string folder;
  int sample_rate = 0;
  std::int64_t utterances = 0, shards = 0, samples = 0;
  std::int64_t without_text = 0, clipped = 0, resampled = 0;
  std::int64_t left_out = 0;
  double hours_left_out = 0;
  std::map<std::string, std::int64_t> reasons;  ///< counts of the reasons for leaving out
  std::vector<std::string> examples;            ///< a few utterances that were left out
  bool there_before = false;                    ///< an earlier run had finished it
  double seconds = 0;                           ///< wall time of this run
  double audio_seconds = 0;  ///< planned duration of the audio that this run decoded
  double hours() const { return static_cast<double>(samples) / sample_rate / 3600; }
  /// A few lines for the user.
  std::string to_string() const;
};

/// Collective over `world`. The ranks share the decoding by shards; the bytes written do not depend
/// on their number. The same call continues a run that was killed: finished shards stay (same
/// entries and options, files of the same size and time), and a finished folder stays if its
/// recordings have not changed since. The folder opens as an AudioCatalog only
/// when it is complete; data that are refused before a shard is finished leave nothing there. A
/// folder with any other content is refused. Throws DataError for a bad
/// utterance (AudioError) unless they are skipped, for a share of bad utterances above bad_cap, and
/// if no utterance is left; DeckError for options; StorageError.
PrepareAudioSummary prepare_audio(Communicator& world, Logger& log,
                                  const std::vector<std::string>& manifests,
                                  const std::string& folder, const PrepareAudioOptions& options);

/// Facts about the plan that shards do not contain.
struct AudioPlanFacts {
  std::uint64_t fingerprint = 0;
  std::uint64_t recordings = 0;  ///< RecordingFiles::state
  int shards = 0, sample_rate = 0;
  std::vector<std::string> manifests;
  std::vector<OmittedEntry> left_out;
};

/// Local. Joins the parts of all shards and writes index.bin last, then removes the parts and the
/// files of earlier, abandoned runs. Throws DataError (a part is missing, no utterance is left),
/// StorageError.
PrepareAudioSummary finish_audio_folder(const std::string& folder, const AudioPlanFacts& facts);
/// Local. Removes files that are needed only until a folder is finished.
void remove_leftovers(const std::string& folder, int shards);

/// Local. Reads report.json of a finished folder. Throws DataError.
std::uint64_t report_fingerprint(const std::string& folder);
/// The manifests that the folder was packed from.
std::vector<std::string> packed_manifests(const std::string& folder);
/// Local. Returns the recording that was changed last, if the recordings are not in the state that
/// the finished folder was packed from, and "" otherwise: also if some of them are not there any
/// more, and for folders of versions that did not note the state.
std::string changed_recording(const std::string& folder, const RecordingFiles& now);
PrepareAudioSummary read_audio_report(const std::string& folder);
/// Local. Judges a finished folder as its packing would with these options: throws the DataError
/// for its bad utterances if they stop, or are more than bad_cap. Returns the sentence that names
/// those left out, "" if there are none.
std::string judge_left_out(const std::string& folder, const PrepareAudioOptions& options);

/// The file that marks an unfinished folder.
std::string unfinished_path(const std::string& folder);

}  // namespace choir
