#pragma once
// `choir transcribe --stream`: what it refuses, what it shows while it hears, and how long it took.
#include <string>
#include <vector>

#include "choir/core/log.hpp"
#include "choir/train/speech/stream_transcriber.hpp"

namespace choir {

/// DeckError that names what makes the checkpoint one that hears recordings only whole.
void require_streaming(const FastConformerConfig& config, const std::string& checkpoint);

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
