#pragma once
// Recordings to transcribe and their transcripts: manifests (NeMo's JSON lines as input, the same
// lines with transcripts as output), and the distribution over ranks: opening the recordings,
// choosing the rank that transcribes each, and gathering the texts.

#include <optional>
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "src/data/audio/audio_decoder.hpp"
#include "src/data/audio/audio_error.hpp"

namespace choir {

/// A word and the time when it was spoken, in seconds from the offset of its recording.
struct SpokenWord {
  std::string text;
  double start = 0, end = 0;
  friend bool operator==(const SpokenWord&, const SpokenWord&) = default;
};

/// The transcript of one recording.
struct Transcript {
  std::string text;
  std::vector<SpokenWord> words;
  double seconds = 0;  ///< duration of the audio
  std::string fault;   ///< the reason of a failure; "" if it was transcribed
  std::string note;    ///< a remark, for example why the text is empty; usually ""
  /// In streaming, the time from the last sample of each chunk to its text.
  std::vector<double> chunk_seconds;
};

/// A recording to transcribe.
struct TranscriptRequest {
  RecordingSource source;
  std::string place;                ///< "manifest.json:12", or the name of a bare file
  std::optional<std::string> text;  ///< the reference text, if known
  std::string text_key{};           ///< the key of the line that seems to hold its text; or ""
  std::string line;                 ///< line of the manifest; "" for a bare file
  std::optional<AudioError> fault;  ///< the fault of the line
};

/// Local. Returns a request for each line that is not blank: audio_filepath (absolute, or relative
/// to the manifest), and optionally offset, duration and text, or a cut of Lhotse. `channel`
/// applies to lines without "channel". Invalid lines carry their fault. Throws DataError for a
/// missing manifest and for one without a line.
std::vector<TranscriptRequest> read_transcript_manifest(const std::string& path,
                                                        ChannelChoice channel);

/// Returns the line of the request with "pred_text", "words" [{"word", "start", "end"}] and, if
/// there is one, "error" or "note"; other keys and their order are kept. For a bare file it is
/// {"audio_filepath", "duration", ...}. No newline.
std::string transcript_line(const TranscriptRequest& request, const Transcript& transcript);
/// Returns {"audio_filepath", "text", "words", "duration"} and, if present, "chunk_ms", "error",
/// "note".
std::string transcript_json(const TranscriptRequest& request, const Transcript& transcript);

/// Conversion to and from bytes, for sending between ranks.
std::string serialise(const Transcript& transcript);
Transcript transcript_of(const std::string& bytes);

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

/// Throws the DataError that names the recordings that cannot be read. With `skip`, only if none
/// can.
void require_readable(const std::vector<TranscriptRequest>& requests,
                      const std::vector<RecordingSurvey>& surveys, bool skip);

/// Local. Returns the recordings that `rank` of `ranks` transcribes: readable recordings are
/// assigned longest first, each to the rank with the least audio.
std::vector<std::size_t> share_of(const std::vector<RecordingSurvey>& surveys, int rank, int ranks);

/// Collective over the world. Returns all transcripts on rank 0, in the order of the requests.
/// `made` are the transcripts of this rank, for the recordings `mine`.
std::vector<Transcript> gather_transcripts(Mesh& mesh, const std::vector<std::size_t>& mine,
                                           const std::vector<Transcript>& made,
                                           const std::vector<RecordingSurvey>& surveys);

}  // namespace choir
