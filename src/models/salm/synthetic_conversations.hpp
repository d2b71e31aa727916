#pragma once
// Synthetic conversations about noise for `choir verify`.
#include <memory>
#include <vector>

#include "choir/core/philox.hpp"
#include "choir/models/family.hpp"
#include "choir/models/salm/salm_config.hpp"
#include "choir/models/synthetic_batches.hpp"

namespace choir {

/// Micro-batches of three shapes as functions of their index: conversations with up to two clips of
/// different loudness and length between random tokens, some of which are targets.
class SyntheticConversations final : public SyntheticBatches {
 public:
  SyntheticConversations(std::uint64_t seed, const SalmConfig& config);

  ModelBatch micro_batch(std::int64_t index) override;
  ByTerm targets(std::int64_t first, std::int64_t count) const override;
  ModelBatch padding() override;
  std::vector<BatchShape> shapes() const override;
  BatchShape shape(std::int64_t index) const override;
  double audio_seconds(std::int64_t index) const override;

 private:
  struct Row {
    std::vector<std::int32_t> ids;
    std::vector<std::uint8_t> counted;
    std::vector<std::int64_t> clip_samples;
  };
  /// Index of the shape of a micro-batch.
  std::size_t kind(std::int64_t index) const;
  std::vector<Row> rows(std::int64_t index) const;
  BatchShape shape_of_kind(std::size_t kind) const;
  void fill_audio(ModelBatch& batch, std::int64_t clip, std::int64_t id,
                  std::int64_t samples) const;

  PhiloxKey row_key_, audio_key_;
  SalmConfig config_;
  std::vector<std::unique_ptr<HostBatch>> batches_;  // by kind
  std::unique_ptr<HostBatch> padding_;
};

}  // namespace choir
