#pragma once
// Recordings shared by ranks: who opens them, who transcribes which, and how the texts come
// together.
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/data/audio/transcript_manifest.hpp"

namespace choir {

/// What is known of a recording before anything is decoded.
struct RecordingSurvey {
  double seconds = 0;
  std::string fault, hint;  ///< why it cannot be read; empty: it opens
};

/// Collective over the world, whose ranks share the opening of files. The same everywhere.
std::vector<RecordingSurvey> survey_recordings(Communicator& world,
                                               const std::vector<TranscriptRequest>& requests,
                                               int rate);

/// Local. Which recordings are those of `rank` of `ranks`: all that open are taken in turn, longest
/// first, each by the rank with least.
std::vector<std::size_t> share_of(const std::vector<RecordingSurvey>& surveys, int rank, int ranks);

/// Collective over the world. On rank 0 all transcripts, in the order of the requests; `made` are
/// those of this rank, of the recordings `mine`.
std::vector<Transcript> gather_transcripts(Mesh& mesh, const std::vector<std::size_t>& mine,
                                           const std::vector<Transcript>& made,
                                           const std::vector<RecordingSurvey>& surveys);

}  // namespace choir
