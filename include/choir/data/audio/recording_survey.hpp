#pragma once
// Distribution of recordings over ranks: opening them, choosing the rank that transcribes each, and
// gathering the texts.
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/data/audio/transcript_manifest.hpp"

namespace choir {

/// Properties of a recording that are known before it is decoded.
struct RecordingSurvey {
  double seconds = 0;
  std::string fault, hint;  ///< the reason why it cannot be read; empty if it can
};

/// Collective over the world, whose ranks share the opening of files. Returns the same on all
/// ranks.
std::vector<RecordingSurvey> survey_recordings(Communicator& world,
                                               const std::vector<TranscriptRequest>& requests,
                                               int rate);

/// Local. Returns the recordings that `rank` of `ranks` transcribes: readable recordings are
/// assigned longest first, each to the rank with the least audio.
std::vector<std::size_t> share_of(const std::vector<RecordingSurvey>& surveys, int rank, int ranks);

/// Collective over the world. Returns all transcripts on rank 0, in the order of the requests.
/// `made` are the transcripts of this rank, for the recordings `mine`.
std::vector<Transcript> gather_transcripts(Mesh& mesh, const std::vector<std::size_t>& mine,
                                           const std::vector<Transcript>& made,
                                           const std::vector<RecordingSurvey>& surveys);

}  // namespace choir
