#pragma once
// Completion of a folder of packed audio from finished shards (manifest, report, index), and
// reading of its report.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/data/audio/prepare_audio.hpp"

namespace choir {

/// Facts about the plan that shards do not contain.
struct AudioPlanFacts {
  std::uint64_t fingerprint = 0;
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
PrepareAudioSummary read_audio_report(const std::string& folder);

/// The file that marks an unfinished folder.
std::string unfinished_path(const std::string& folder);

}  // namespace choir
