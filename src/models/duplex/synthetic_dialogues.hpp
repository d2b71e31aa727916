#pragma once
// Synthetic dialogues about noise for `choir verify`.
#include <memory>
#include <vector>

#include "choir/core/philox.hpp"
#include "choir/models/duplex/duplex_batch.hpp"
#include "choir/models/family.hpp"
#include "choir/models/synthetic_batches.hpp"

namespace choir {

/// Micro-batches of three shapes as functions of their index: dialogues of different length and
/// loudness, with random turns of text and random codes, delayed by a frame.
class SyntheticDialogues final : public SyntheticBatches {
 public:
  /// DeckError if the decoder has fewer positions than the longest dialogue has frames.
  SyntheticDialogues(std::uint64_t seed, const DuplexConfig& config);

  ModelBatch micro_batch(std::int64_t index) override;
  ByTerm targets(std::int64_t first, std::int64_t count) const override;
  ModelBatch padding() override;
  std::vector<BatchShape> shapes() const override;
  BatchShape shape(std::int64_t index) const override;
  double audio_seconds(std::int64_t index) const override;

 private:
  /// Their ids are the last three of the vocabulary.
  DialogueControls controls() const;
  BatchShape shape_of_kind(std::size_t number) const;
  std::size_t kind(std::int64_t index) const;
  /// Number of frames of each dialogue.
  std::vector<std::int64_t> lengths(std::int64_t index) const;
  std::int64_t drawn(std::int64_t id, std::int64_t place, std::int64_t below) const;
  /// The agent's text in each frame and in the one after the last.
  std::vector<std::int32_t> text_of(std::int64_t id, std::int64_t frames) const;
  void fill_agent(ModelBatch& batch, std::int64_t row, std::int64_t id, std::int64_t frames) const;
  void fill_user(ModelBatch& batch, std::int64_t row, std::int64_t id, std::int64_t frames) const;

  PhiloxKey row_key_, audio_key_;
  DuplexConfig config_;
  std::vector<std::unique_ptr<HostBatch>> batches_;
  std::unique_ptr<HostBatch> padding_;
};

}  // namespace choir
