#pragma once
// Speech data that all speech families share: the opened data set of a deck with the vocabulary of
// its labels, and the steps of a training, planned a second time ahead of reading, with the content
// of each step and the position of the data after it.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "choir/models/batch.hpp"
#include "choir/run/training_data.hpp"
#include "src/data/sampling/sampler.hpp"
#include "src/data/speech/speech_dataset.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/models/fastconformer/speech_settings.hpp"

namespace choir {

/// An opened data set for training.
struct SpeechData {
  std::unique_ptr<SpeechDataset> set;
  Vocabulary vocabulary;
};
/// Collective over the mesh; the ranks of the data axis read, and pass their batch to the ranks
/// that share it. The vocabulary is `units`, the JSON of a checkpoint; if that is "", it is that of
/// tokenizer.NAME.json beside the labels. `training`: opens data.train as well. Throws on all
/// ranks: DataError (files, rates, vocabularies, bad utterances), DeckError.
SpeechData open_speech(const Deck& deck, const SpeechRequest& request, Mesh& mesh, bool training,
                       const std::string& units = {});
/// The same for models that do not read transcripts: labels may be missing (data.labels = "").
std::unique_ptr<SpeechDataset> open_recordings(const Deck& deck, const SpeechRequest& request,
                                               Mesh& mesh, bool training);
/// Opens the data with the request of a FastConformer.
inline SpeechData open_speech(const Deck& deck, Mesh& mesh, bool training,
                              const std::string& units = {}) {
  return open_speech(deck, speech_request(deck), mesh, training, units);
}

/// The name of the weights of a recogniser's head.
inline constexpr const char* kHeadWeight = "head.weight";
/// Pure. The run from which a training takes the head of a recogniser (checkpoint.init_from); "" if
/// it takes none.
std::string source_of_head(const CheckpointSection& wish);

/// A batch in the engine's form: the same host memory.
ModelBatch speech_batch(const SpeechBatch& batch);
/// The shapes for which no other is at least as large in all three extents.
std::vector<BatchShape> largest_shapes(const std::vector<SpeechShape>& shapes);

// Helpers of the training data of all speech families.

/// Local. Rank 0 warns that there is no validation.
void warn_without_validation(const Mesh& mesh, Logger& log);
/// Counts of all sources and sets, ", train 9 utterances of 0.1 hours, validation ...", for
/// TrainingData::contents(), because hours of audio are too much to read for it. `what`:
/// "utterances".
std::string counts_of(const SpeechDataset& set, std::string_view what);
/// Collective over the mesh. The warnings of the readers of all ranks.
std::vector<std::string> gathered_warnings(SpeechDataset& set, Mesh& mesh);

/// Announces the targets of a step of `terms` terms: the sums of of_row(item) over its rows.
template <class OfRow>
void announce_targets(const SpeechStep& planned, std::size_t terms, const OfRow& of_row,
                      StepContent& to) {
  to.targets = ByTerm(terms, 0);
  to.micro_batch_targets.clear();
  for (std::int64_t j = 0; j < planned.micro_batches(); ++j) {
    ByTerm sum(terms, 0);
    for (const SpeechRow& row : planned.micro_batch(j)) sum += of_row(row.item);
    to.micro_batch_targets.push_back(sum);
    to.targets += sum;
  }
}

/// Sets ModelBatch::dropped: the sums of of_row(item) over the rows that turned out to be damaged,
/// which have no audio.
template <class OfRow>
void count_dropped(const SpeechBatch& batch, const OfRow& of_row, ModelBatch& to) {
  to.dropped = {};
  const auto* const lengths = static_cast<const std::int32_t*>(batch.audio_lengths.data);
  for (std::size_t r = 0; r < batch.rows.size(); ++r) {
    if (lengths[r] > 0 || batch.rows[r].item.samples == 0) continue;
    const ByTerm targets = of_row(batch.rows[r].item);
    for (std::size_t t = 0; t < targets.size(); ++t) to.dropped[t] += targets[t];
  }
}

class PlannedSteps {
 public:
  /// Adds the content of a step besides its numbers of rows and labels, which are the targets
  /// unless it announces others.
  using Fill = std::function<void(const SpeechStep&, StepContent&)>;

  /// Collective over the mesh. Starts at a position. If the position belongs to other data, the
  /// order starts from the beginning, and rank 0 warns that the data (`what`: "utterances") differ.
  void begin(const SpeechSampler& sampler, const TrainingData::Position& from,
             std::int64_t micro_batches, std::string_view what, Mesh& mesh, Logger& log);
  /// Local. The micro-batches that a rank reads, with `per_rank` of them in each step.
  SpeechOrder order(const Sharding& sharding, std::int64_t per_rank) const;
  /// Local. The results of TrainingData::position() and TrainingData::content().
  std::string position(std::int64_t step) const;
  const StepContent& content(std::int64_t step, const Fill& fill);

 private:
  struct Planned {
    std::int64_t step = -1;
    StepContent content;
    SpeechCursor after;
  };
  /// More steps than any engine queues.
  static constexpr std::size_t kSteps = 32;

  SpeechCursor cursor_of(const TrainingData::Position& from, std::string_view what, Mesh& mesh,
                         Logger& log) const;
  Planned& place(std::int64_t step) { return planned_[static_cast<std::size_t>(step) % kSteps]; }
  const Planned& place(std::int64_t step) const {
    return planned_[static_cast<std::size_t>(step) % kSteps];
  }

  const SpeechSampler* sampler_ = nullptr;
  std::int64_t micro_batches_ = 0;
  std::optional<SpeechSteps> steps_;
  std::int64_t first_ = 0, next_ = 0;
  SpeechCursor begin_;
  SpeechStep step_;
  std::array<Planned, kSteps> planned_;
};

}  // namespace choir
