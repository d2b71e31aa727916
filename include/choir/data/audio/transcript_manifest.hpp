#pragma once
// Manifests of recordings to transcribe: NeMo's JSON lines in, the same lines with what was heard
// out.
#include <optional>
#include <string>
#include <vector>

#include "choir/data/audio/audio_error.hpp"
#include "choir/data/audio/recording.hpp"

namespace choir {

/// A word and when it was spoken, in seconds from the beginning of its recording (of its offset).
struct SpokenWord {
  std::string text;
  double start = 0, end = 0;
  friend bool operator==(const SpokenWord&, const SpokenWord&) = default;
};

/// What was heard in one recording.
struct Transcript {
  std::string text;
  std::vector<SpokenWord> words;
  double seconds = 0;  ///< of audio
  std::string fault;   ///< "" unless it could not be transcribed: why
  std::string note;    ///< "" unless there is more to say, such as why the text is empty
  /// For a stream, the time from the last sample of each chunk to its text.
  std::vector<double> chunk_seconds;
};

/// A recording to transcribe.
struct TranscriptRequest {
  RecordingSource source;
  std::string place;                ///< "manifest.json:12"; of a bare file its name
  std::optional<std::string> text;  ///< what was said, where it is known
  std::string line;                 ///< of the manifest; "" for a bare file
  std::optional<AudioError> fault;  ///< what is wrong with the line
};

/// Local. One request a line that is not blank: audio_filepath (absolute, or relative to the
/// manifest), and where given offset, duration and text. `channel` where the line has no "channel".
/// Lines that are none carry their fault. Throws DataError: missing, or without a line.
std::vector<TranscriptRequest> read_transcript_manifest(const std::string& path,
                                                        ChannelChoice channel);

/// The line of the request with "pred_text", "words" [{"word", "start", "end"}] and, where there
/// is one, "error" or "note" set; other keys as they were, in their order. Of a bare file
/// {"audio_filepath", "duration", ...}. No newline.
std::string transcript_line(const TranscriptRequest& request, const Transcript& transcript);
/// {"audio_filepath", "text", "words", "duration"} and, where there are, "chunk_ms", "error",
/// "note".
std::string transcript_json(const TranscriptRequest& request, const Transcript& transcript);

/// For sending between ranks.
std::string serialise(const Transcript& transcript);
Transcript transcript_of(const std::string& bytes);

}  // namespace choir
