#pragma once
// Transcription of recordings of any length by a speech model. The text of a recording does not
// depend on the others, on their order or on the batch size: batches change only the rounding of
// products, and windows depend only on the recording and the plan.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "choir/run/model_instance.hpp"
#include "src/data/audio/audio_error.hpp"
#include "src/data/audio/transcripts.hpp"
#include "src/data/speech/ctc_decoder.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/models/fastconformer/speech_windows.hpp"

namespace choir {

struct TranscriptionOptions {
  double memory = 0;           ///< bytes of the device for this rank; 0: a default share of it
  double window_seconds = 60;  ///< window of longer recordings; limited memory may shorten it
  std::int64_t batch = 16;     ///< upper bound of windows in one pass
  std::int64_t beam = 0;       ///< prefixes; 0: the best symbol of every frame
};

/// A number of rows, and the largest number of frames for it.
struct BatchLimit {
  std::int64_t rows = 1, frames = 0;
};

struct TranscriptionPlan {
  WindowPlan windows;
  std::int64_t align = 1;
  std::vector<BatchLimit> limits;  ///< with increasing rows and decreasing frames
  std::size_t arena_bytes = 0;
  std::size_t total_bytes = 0;  ///< with parameters
  /// Number of rows that fit for windows of this number of frames.
  std::int64_t rows_for(std::int64_t frames) const;
  /// Padded samples of a window: a recording may end within a hop of the features.
  static std::int64_t samples_of(const FastConformerConfig& config, std::int64_t frames) {
    return frames * config.mel.hop * config.subsampling + config.mel.hop;
  }
};

/// Local. Plans by running the model on the null device. The windows depend on the memory, not on
/// the batch. `budget`: limit of all memory on this rank in bytes. DeckError if the parameters and
/// the smallest window do not fit.
TranscriptionPlan plan_transcription(const ModelInstance::Options& options, const Layout& layout,
                                     int rank, const TranscriptionOptions& request, double budget,
                                     const Device* target);
/// The default of --memory: a quarter of a node for all its ranks, or half a card.
double default_transcription_memory(const Device& device, int ranks_per_node);

/// Converts log-probabilities or best symbols of the frames of one recording to text.
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
  /// Completes a transcript from labels that were decoded elsewhere.
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
  /// `plan`: that of plan_transcription(), whose size the arena of the instance has.
  Transcriber(ModelInstance& instance, const Vocabulary& vocabulary, const TranscriptionPlan& plan,
              std::int64_t beam);

  /// `on_bad`: a recording that fails throws its error (stop), or its transcript gets a fault.
  /// `progress` is called with the seconds of audio that were completed. Collective over all axes
  /// except data (whose ranks pass different recordings), and over data too if parameters are
  /// sharded; then a rank without recordings must call it as well, and all ranks agree on errors.
  /// The ranks agree on recordings that cannot be read. Transcripts are in the order of `sources`.
  std::vector<Transcript> transcribe(std::span<const RecordingSource> sources, OnBad on_bad,
                                     const std::function<void(double)>& progress = {});

 private:
  struct Item;
  struct Job;
  struct Open;
  /// True if ranks share parameters along the data axis: all then run the same number of passes.
  bool walks_together() const;
  /// The ranks that must fail together.
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
