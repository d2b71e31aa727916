#pragma once
// Sums gradients over micro-batches and data-parallel ranks.
//
// Normally micro-batches add into the bucket as they come, and the last one starts the all-reduce
// of each bucket as soon as backward has finished with it. In reproducible mode both sums follow
// one fixed binary tree over the global micro-batch index: rank r owns the contiguous micro-batches
// [r*A, (r+1)*A), a rank sums its own by a binary counter (as carries of j+1), the ranks continue
// the same tree. With A and the number of ranks powers of two the tree, and so every bit of the
// sum, is that of one rank.
#include <cstdint>
#include <vector>

#include "choir/nn/bucket_hooks.hpp"
#include "choir/parallel/parameter_storage.hpp"

namespace choir {

class GradientReducer final : public BucketHooks {
 public:
  /// `micro_batches` per rank and step.
  GradientReducer(ParameterStorage& storage, Device& device, Communicator& data,
                  std::int64_t micro_batches, bool reproducible);

  /// Local: before the forward of micro-batch j (0-based inside the rank).
  void begin_micro_batch(const Stream& stream, std::int64_t j);
  /// Collective over data on the last micro-batch: starts the reduction of the bucket.
  void gradients_ready(int bucket) override;
  /// Collective: completes all reductions. Seconds spent waiting: the communication that was not
  /// hidden.
  double finish();

  void add_to(MemoryPlan& plan) const;

 private:
  void combine(const Bucket& bucket);

  ParameterStorage* storage_;
  Communicator* data_;
  Stream stream_;
  std::int64_t micro_batches_;
  std::int64_t current_ = 0;
  bool reproducible_;
  std::vector<Buffer> levels_;  // level l holds the sum of 2^l micro-batches
  std::vector<CommRequest*> in_flight_;
};

}  // namespace choir
