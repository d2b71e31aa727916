#pragma once
// What the user sees of transcripts: texts, error rates where there is a reference, speed.
#include <string>
#include <vector>

#include "choir/data/audio/transcript_manifest.hpp"

namespace choir {

/// Local. The lines of a manifest again, with what was heard. StorageError where it cannot be
/// written.
void write_transcripts(const std::string& path, const std::vector<TranscriptRequest>& requests,
                       const std::vector<Transcript>& transcripts);

/// DataError where recordings were given and none could be read: what opens may still fail later.
void require_any(const std::vector<TranscriptRequest>& requests,
                 const std::vector<Transcript>& transcripts);

/// To stdout "FILE: TEXT" with `texts`, or a JSON line each with `json`; to stderr what was left
/// out.
void print_texts(const std::vector<TranscriptRequest>& requests,
                 const std::vector<Transcript>& transcripts, bool json, bool texts);

/// WER and CER as counts over all that has a reference; "" where nothing has.
std::string error_rates(const std::vector<TranscriptRequest>& requests,
                        const std::vector<Transcript>& transcripts);

/// Seconds of audio in seconds of time.
std::string speed_of(const std::vector<Transcript>& transcripts, double seconds);

}  // namespace choir
