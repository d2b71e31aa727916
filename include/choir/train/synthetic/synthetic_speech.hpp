#pragma once
// Utterances that nobody spoke, for benchmarks: noise with random transcripts, in a few
// micro-batches of which each has utterances of about one length, as buckets make them.
#include <cstdint>
#include <memory>
#include <vector>

#include "choir/model/fastconformer_config.hpp"
#include "choir/model/host_batch.hpp"
#include "choir/model/model.hpp"

namespace choir {

class SyntheticSpeech {
 public:
  struct Options {
    double batch_duration = 120;       ///< seconds of a micro-batch, at most, with padding
    double shortest = 2, longest = 4;  ///< seconds of an utterance
    double labels_per_second = 4;      ///< where frames suffice: CTC wants one each, at least
    std::uint64_t seed = 0;
  };
  static constexpr int kBatches = 4;

  /// Makes all of them. DeckError for durations that cannot be.
  SyntheticSpeech(const FastConformerConfig& config, const Options& options);

  /// What is asked for again is the same; number n is that of n % kBatches.
  ModelBatch micro_batch(std::int64_t index) { return batch(index).memory->batch; }
  ModelBatch padding() { return padding_->batch; }  ///< for a rank without work
  std::vector<BatchShape> shapes() const;

  // Of what is said in one micro-batch, without padding.
  double seconds(std::int64_t index) const { return batch(index).seconds; }
  double targets(std::int64_t index) const { return batch(index).targets; }
  double flops(std::int64_t index, const Model& model) const;

 private:
  struct Made {
    std::unique_ptr<HostBatch> memory;
    BatchShape shape;
    double seconds = 0, targets = 0;
  };
  const Made& batch(std::int64_t index) const {
    return made_[static_cast<std::size_t>(index % kBatches)];
  }
  Made make(int number) const;
  /// Row `row` of `made`, of so many samples.
  void fill(Made& made, std::int64_t row, std::int64_t samples, std::int64_t id) const;

  FastConformerConfig config_;
  Options options_;
  std::vector<Made> made_;
  std::unique_ptr<HostBatch> padding_;
};

}  // namespace choir
