#pragma once
// What the user sees of transcripts: lines of a manifest, error rates where there is a reference,
// speed, and of streams the text as it grows.
#include <string>
#include <vector>

#include "choir/data/audio/transcript_manifest.hpp"
#include "choir/models/fastconformer/stream_transcriber.hpp"

namespace choir {

/// Local. The lines of a manifest again, with what was heard. StorageError where it cannot be
/// written.
void write_transcripts(const std::string& path, const std::vector<TranscriptRequest>& requests,
                       const std::vector<Transcript>& transcripts);

/// DataError where recordings were given and none could be read: what opens may still fail later.
void require_any(const std::vector<TranscriptRequest>& requests,
                 const std::vector<Transcript>& transcripts);

/// WER and CER as counts over all that has a reference; "" where nothing has.
std::string error_rates(const std::vector<TranscriptRequest>& requests,
                        const std::vector<Transcript>& transcripts);

/// Seconds of audio in seconds of time.
std::string speed_of(const std::vector<Transcript>& transcripts, double seconds);

/// Shows text as it grows: on a terminal in place, elsewhere, with `lines`, a line a chunk.
class PartialText {
 public:
  /// `names` of the sources; `shows`: this process writes on stdout.
  PartialText(std::vector<std::string> names, bool shows, bool lines);
  ~PartialText();
  PartialText(const PartialText&) = delete;
  /// Empty where nothing is shown.
  StreamTranscriber::Heard heard();

 private:
  void show(std::size_t source, double seconds, const std::string& newest);
  std::vector<std::string> names_;
  bool lines_, in_place_, written_ = false;
};

/// "chunks of 640 ms; a frame waits at most 576 ms for its chunk to be complete ..." and the median
/// and the tail of the time that chunks took.
std::string stream_summary(const FastConformerConfig& config,
                           const std::vector<Transcript>& transcripts);

}  // namespace choir
