#pragma once
// Utterances of `choir verify` and of data.format = "synthetic": noise of different loudness and
// length with random transcripts, as a function of the micro-batch. Micro-batches are of three
// shapes, rows of all lengths; some utterances have no transcript.
#include <array>

#include "choir/core/philox.hpp"
#include "choir/model/host_batch.hpp"
#include "choir/train/synthetic/synthetic_batches.hpp"

namespace choir {

class SyntheticUtterances final : public SyntheticBatches {
 public:
  /// Utterance r of micro-batch i has the id i * kMostRows + r.
  static constexpr std::int64_t kMostRows = 3;

  SyntheticUtterances(std::uint64_t seed, const FastConformerConfig& config);

  ModelBatch micro_batch(std::int64_t index) override;
  std::int64_t targets(std::int64_t first, std::int64_t count) const override;
  ModelBatch padding() override;
  std::vector<BatchShape> shapes() const override;
  /// Of one micro-batch, and its samples of audio that are no padding.
  BatchShape shape(std::int64_t index) const;
  std::int64_t audio_samples(std::int64_t index) const;

 private:
  struct Row {
    std::int64_t samples = 0, labels = 0;
  };
  /// Of these kinds a micro-batch has one.
  std::size_t kind(std::int64_t index) const;
  Row row(std::int64_t index, std::int64_t row) const;
  void fill(ModelBatch& batch, std::int64_t index, std::int64_t row) const;

  PhiloxKey shape_key_, audio_key_, label_key_;
  FastConformerConfig config_;
  std::vector<std::unique_ptr<HostBatch>> batches_;  // by kind
  std::unique_ptr<HostBatch> padding_;
};

}  // namespace choir
