#pragma once
// Output of transcription: lines of a manifest, error rates if there is a reference, speed, and the
// growing text of streams.
#include <string>
#include <vector>

#include "src/data/audio/transcripts.hpp"
#include "src/models/fastconformer/stream_transcriber.hpp"

namespace choir {

/// True for subtitles, a file of which belongs to one recording.
bool is_subtitles(const std::string& path);

/// The error if transcripts are not written in the format of this extension; "" if they are.
std::string wrong_transcripts_name(const std::string& path);

/// Writes the lines of a manifest, or those of the recordings, with the recognised text; or, by the
/// extension of `path`, the times of words (.ctm), lines for sclite (.trn), subtitles of one
/// recording (.srt, .vtt) or the texts alone (.txt). Local. Throws StorageError if the file cannot
/// be written.
void write_transcripts(const std::string& path, const std::vector<TranscriptRequest>& requests,
                       const std::vector<Transcript>& transcripts);

/// Throws DataError if recordings were given and none could be read: a recording that opens may
/// still fail later.
void require_any(const std::vector<TranscriptRequest>& requests,
                 const std::vector<Transcript>& transcripts);

/// WER and CER as counts over all recordings with a reference; "" if there are none.
std::string error_rates(const std::vector<TranscriptRequest>& requests,
                        const std::vector<Transcript>& transcripts);

/// Tells how many references have characters that the units of the model cannot write, so that each
/// of their words is an error, and the command that writes the manifest in another form; "" if all
/// can be written.
std::string unwritable_references(const Vocabulary& units, const std::string& manifest,
                                  const std::vector<TranscriptRequest>& requests);

/// The speed: seconds of audio in seconds of time.
std::string speed_of(const std::vector<Transcript>& transcripts, double seconds);

/// Shows text as it grows: in place on a terminal or, with `lines`, one line per chunk.
class PartialText {
 public:
  /// `names` of the sources; `shows`: this process writes to stdout.
  PartialText(std::vector<std::string> names, bool shows, bool lines);
  ~PartialText();
  PartialText(const PartialText&) = delete;
  /// The callback for new text; empty if nothing is shown.
  StreamTranscriber::Heard heard();

 private:
  void show(std::size_t source, double seconds, const std::string& newest);
  std::vector<std::string> names_;
  bool lines_, in_place_, written_ = false;
};

/// Formats "chunks of 640 ms; a frame waits at most 576 ms for its chunk to be complete ..." and
/// the median and the tail of the chunks' times.
std::string stream_summary(const FastConformerConfig& config,
                           const std::vector<Transcript>& transcripts);

}  // namespace choir
