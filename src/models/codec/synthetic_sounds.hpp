#pragma once
// Random sounds for `choir verify`.
#include <memory>
#include <vector>

#include "choir/core/philox.hpp"
#include "choir/models/family.hpp"
#include "choir/models/synthetic_batches.hpp"
#include "src/models/codec/codec_config.hpp"

namespace choir {

/// Micro-batches of three shapes as functions of their index: noise of different loudness, with
/// lengths that are not whole frames, some of them shorter by several frames than others in the
/// batch.
class SyntheticSounds final : public SyntheticBatches {
 public:
  SyntheticSounds(std::uint64_t seed, const CodecConfig& config);

  ModelBatch micro_batch(std::int64_t index) override;
  ByTerm targets(std::int64_t first, std::int64_t count) const override;
  ModelBatch padding() override { return padding_->batch; }
  std::vector<BatchShape> shapes() const override;
  BatchShape shape(std::int64_t index) const override;
  double audio_seconds(std::int64_t index) const override;

 private:
  /// Index of the shape of a micro-batch.
  std::size_t kind(std::int64_t index) const;
  BatchShape shape_of_kind(std::size_t kind) const;
  /// Samples of a row.
  std::int64_t length(std::int64_t index, std::int64_t row) const;

  PhiloxKey length_key_, audio_key_;
  CodecConfig config_;
  std::vector<std::unique_ptr<HostBatch>> batches_;  // by kind
  std::unique_ptr<HostBatch> padding_;
};

}  // namespace choir
