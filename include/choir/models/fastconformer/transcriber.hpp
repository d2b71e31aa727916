#pragma once
// Text from recordings of any length by a speech model. What a recording says does not depend on
// the others, on their order or on how many share a batch: batches change the rounding of products
// alone, and windows are a function of the recording and the plan.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "choir/data/audio/audio_error.hpp"
#include "choir/data/audio/transcript_manifest.hpp"
#include "choir/data/speech/ctc_decoder.hpp"
#include "choir/data/vocabulary/vocabulary.hpp"
#include "choir/infer/model_instance.hpp"
#include "choir/models/fastconformer/speech_windows.hpp"

namespace choir {

struct TranscriptionOptions {
  double memory = 0;           ///< bytes of the device for this rank; 0: a part of what it has
  double window_seconds = 60;  ///< of recordings longer than that; memory may ask for less
  std::int64_t batch = 16;     ///< windows in one pass, at most
  std::int64_t beam = 0;       ///< prefixes; 0: the best symbol of every frame
};

/// Rows of at most so many frames.
struct BatchLimit {
  std::int64_t rows = 1, frames = 0;
};

struct TranscriptionPlan {
  WindowPlan windows;
  std::int64_t align = 1;
  std::vector<BatchLimit> limits;  ///< rows rise, frames fall
  std::size_t arena_bytes = 0;
  std::size_t total_bytes = 0;  ///< with parameters
  /// Rows that fit for windows of so many frames.
  std::int64_t rows_for(std::int64_t frames) const;
  /// Padded audio of a window: a recording may end within a step of the features.
  static std::int64_t samples_of(const FastConformerConfig& config, std::int64_t frames) {
    return frames * config.mel.hop * config.subsampling + config.mel.hop;
  }
};

/// Local, by running the model on the null device. The windows depend on the memory, not on the
/// batch. `budget`: bytes that all may take on this rank. DeckError when the parameters and the
/// smallest window do not fit.
TranscriptionPlan plan_transcription(const ModelInstance::Options& options, const Layout& layout,
                                     int rank, const TranscriptionOptions& request, double budget,
                                     const Device* target);
/// Without --memory: a quarter of a node for all its ranks, half a card.
double default_transcription_memory(const Device& device, int ranks_per_node);

/// Log-probabilities or best symbols of the frames of one recording become text.
class TranscriptMaker {
 public:
  TranscriptMaker(const Vocabulary& vocabulary, double seconds_per_frame, std::int64_t beam);
  /// `logits` [frames, symbols] of the next frames. NumericError when one is not finite.
  struct Frames {
    std::vector<std::int32_t> best;
    std::vector<float> log_probabilities;  ///< with a beam
  };
  void add(Frames& frames, std::span<const float> logits, std::int64_t symbols) const;
  void finish(const Frames& frames, Transcript& transcript) const;
  /// Finishes what was decoded otherwise.
  void finish(std::span<const TimedLabel> labels, Transcript& transcript) const;
  std::int64_t beam() const { return beam_; }
  std::int32_t blank() const { return static_cast<std::int32_t>(pieces_.size()); }

 private:
  std::vector<std::string> pieces_;
  double seconds_per_frame_;
  std::int64_t beam_;
};

class Transcriber {
 public:
  /// `plan` as of plan_transcription(); the arena of the instance has that size.
  Transcriber(ModelInstance& instance, const Vocabulary& vocabulary, const TranscriptionPlan& plan,
              std::int64_t beam);

  /// `on_bad`: a recording that fails passes its error on (stop), or its transcript gets a fault.
  /// `progress` hears of seconds of audio done. Collective over all axes but data (whose ranks give
  /// different recordings); over data too where parameters are sharded, and then also a rank
  /// without recordings calls it. A recording that cannot be read is agreed on. In the order of
  /// `sources`.
  /// Where parameters are sharded, errors are agreed on by all ranks.
  std::vector<Transcript> transcribe(std::span<const RecordingSource> sources, OnBad on_bad,
                                     const std::function<void(double)>& progress = {});

 private:
  struct Item;
  struct Job;
  struct Open;
  /// Ranks share parameters along the data axis: all make equally many passes.
  bool walks_together() const;
  /// Ranks that must fail alike.
  Communicator& agreeing() const;
  void survey(Item& item) const;
  std::size_t next_batch(const std::vector<Job>& jobs, std::size_t first) const;
  void run_batch(std::span<const Job> jobs, std::vector<Item>& items, Open& open, OnBad on_bad);
  void read_row(const Job& job, Item& item, Open& open, const ModelBatch& batch, std::int64_t row,
                OnBad on_bad);
  void take_logits(const Tensor& logits, std::span<const Job> jobs, std::vector<Item>& items,
                   const ModelBatch& batch);

  ModelInstance* instance_;
  FastConformerConfig config_;
  TranscriptionPlan plan_;
  TranscriptMaker maker_;
};

}  // namespace choir
