#pragma once
// The steps of a training on utterances or conversations, planned a second time ahead of reading:
// the content of each step, and the position of the data after it.
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "choir/data/speech/speech_dataset.hpp"
#include "choir/data/speech/speech_sampler.hpp"
#include "choir/train/step/training_data.hpp"

namespace choir {

class PlannedSteps {
 public:
  /// Adds the content of a step besides its numbers of rows and targets.
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
