#pragma once
// From finished shards to a folder that opens: manifest, report, index; and what is in a report.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/data/audio/prepare_audio.hpp"

namespace choir {

/// What the plan knows and the shards do not.
struct AudioPlanFacts {
  std::uint64_t fingerprint = 0;
  int shards = 0, sample_rate = 0;
  std::vector<std::string> manifests;
  std::vector<OmittedEntry> left_out;
};

/// Local. Joins the parts of all shards; index.bin comes last. Then removes the parts and whatever
/// an earlier, abandoned run left. Throws DataError (a part is missing, nothing is left),
/// StorageError.
PrepareAudioSummary finish_audio_folder(const std::string& folder, const AudioPlanFacts& facts);
/// Local. Removes what is only of use before a folder is finished.
void remove_leftovers(const std::string& folder, int shards);

/// Local. Of a finished folder: report.json. Throws DataError.
std::uint64_t report_fingerprint(const std::string& folder);
PrepareAudioSummary read_audio_report(const std::string& folder);

/// Marks a folder that is being prepared.
std::string unfinished_path(const std::string& folder);

}  // namespace choir
