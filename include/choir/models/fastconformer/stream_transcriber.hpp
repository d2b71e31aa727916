#pragma once
// Text from recordings as from microphones: chunk by chunk, in memory that does not depend on their
// length but for the text.
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/data/audio/audio_error.hpp"
#include "choir/models/fastconformer/speech_stream.hpp"
#include "choir/models/fastconformer/transcriber.hpp"

namespace choir {

/// A transcript that grows: what TranscriptMaker makes of all frames at once.
class GrowingTranscript {
 public:
  explicit GrowingTranscript(const TranscriptMaker& maker);
  void begin();
  /// `logits` [frames, symbols] of the next frames. NumericError when one is not finite.
  void add(std::span<const float> logits);
  /// The last words of what was heard so far: of so many labels.
  std::string newest(std::size_t labels) const;
  void finish(Transcript& transcript) const;

 private:
  std::vector<TimedLabel> labels() const;

  const TranscriptMaker* maker_;
  CtcCollapse best_;
  std::optional<CtcBeam> beam_;
  TranscriptMaker::Frames frames_;  // of one call
};

class StreamTranscriber {
 public:
  /// Collective as SpeechStream(): the arena of the instance as plan_stream() says. `vocabulary`
  /// must live as long as this.
  StreamTranscriber(ModelInstance& instance, const Vocabulary& vocabulary, std::int64_t beam);

  /// A chunk of source `source` was heard: audio up to `seconds`; the newest of its text.
  using Heard = std::function<void(std::size_t source, double seconds, const std::string& newest)>;
  /// As Transcriber::transcribe(), with the time that each chunk took; `heard` may be empty.
  std::vector<Transcript> transcribe(std::span<const RecordingSource> sources, OnBad on_bad,
                                     const Heard& heard = {});

 private:
  struct Source;
  bool walks_together() const;
  Communicator& agreeing() const;
  bool any(bool mine) const;
  void open(Source& source, std::span<const RecordingSource> sources, OnBad on_bad);
  /// Audio for the next chunk of the source; false: it has no more.
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
  HostBuffer memory_;  // of scores on a GPU
  std::vector<float> scores_;
};

}  // namespace choir
