#pragma once
// Transcription chunk by chunk, as from a microphone. Only the memory of the text depends on the
// length of the recordings.
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "src/data/audio/audio_error.hpp"
#include "src/models/fastconformer/speech_stream.hpp"
#include "src/models/fastconformer/transcriber.hpp"

namespace choir {

/// A growing transcript, equal to the one that TranscriptMaker makes from all frames at once.
class GrowingTranscript {
 public:
  explicit GrowingTranscript(const TranscriptMaker& maker);
  void begin();
  /// Adds the `logits` [frames, symbols] of the next frames. NumericError if one is not finite.
  void add(std::span<const float> logits);
  /// The last words of the transcript so far, those of the last `labels` labels.
  std::string newest(std::size_t labels) const;
  void finish(Transcript& transcript) const;

 private:
  std::vector<TimedLabel> labels() const;

  const TranscriptMaker* maker_;
  CtcCollapse best_;
  std::optional<CtcBeam> beam_;
  TranscriptMaker::Frames frames_;  // of a single call
};

class StreamTranscriber {
 public:
  /// Collective as for SpeechStream(); the arena of the instance has the size of plan_stream().
  /// `vocabulary` must outlive this object.
  StreamTranscriber(ModelInstance& instance, const Vocabulary& vocabulary, std::int64_t beam);

  /// Called after each chunk of a source: the end of its audio in seconds, and its newest text.
  using Heard = std::function<void(std::size_t source, double seconds, const std::string& newest)>;
  /// The transcripts of Transcriber::transcribe(), with the time of each chunk; `heard` may be
  /// empty.
  std::vector<Transcript> transcribe(std::span<const RecordingSource> sources, OnBad on_bad,
                                     const Heard& heard = {});

 private:
  struct Source;
  bool walks_together() const;
  Communicator& agreeing() const;
  bool any(bool mine) const;
  void open(Source& source, std::span<const RecordingSource> sources, OnBad on_bad);
  /// Adds audio for the next chunk of the source; false if the source has ended.
  bool feed(Source& source, OnBad on_bad);
  void chunk(Source& source, const Heard& heard);
  void idle();
  void finish(Source& source);

  ModelInstance* instance_;
  double frame_seconds_;
  std::int64_t rate_, symbols_;
  TranscriptMaker maker_;
  GrowingTranscript text_;
  SpeechStream stream_;
  HostBuffer memory_;  // scores of a GPU in host memory
  std::vector<float> scores_;
};

}  // namespace choir
