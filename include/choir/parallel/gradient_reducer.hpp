#pragma once
// Sums gradients over micro-batches and data-parallel ranks.
//
// Stages 0 and 1: micro-batches add into whole buckets as they come, and the last one starts the
// all-reduce (stage 1: reduce-scatter) of each bucket as soon as backward has finished with it.
// Stages 2 and 3: whole gradients exist bucket by bucket, in a few slots; every micro-batch reduces
// and scatters each of them and adds the result to the slice, so that accumulation over A
// micro-batches moves A times the bytes. With several groups the slices are all-reduced over the
// replicas at the end of the step. Bytes a step and rank, with G of gradients:
//
//   stage 0   all-reduce G          stage 2, 3   reduce-scatter A G
//   stage 1   reduce-scatter G      groups       and all-reduce G / slices
//
// Buckets of frozen parameters have no gradients, and nothing happens to them.
//
// In reproducible mode both sums follow one fixed binary tree over the global micro-batch index: a
// rank sums what it takes by a binary counter (as carries of j+1), the ranks a tree. Where ranks
// own contiguous micro-batches (Sharding::first_micro_batch), the tree over j comes below that over
// ranks; in stages 2 and 3 ranks take turns, and it comes above that of the group. With powers of
// two the tree, and so every bit of the sum, is that of one rank.
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "choir/core/negative_control.hpp"
#include "choir/parallel/parameter_gatherer.hpp"

namespace choir {

class GradientReducer final : public BucketHooks {
 public:
  /// `micro_batches` per rank and step. Collective from stage 2 on.
  GradientReducer(ParameterStorage& storage, ParameterGatherer& gatherer, Device& device,
                  std::int64_t micro_batches, bool reproducible,
                  NegativeControl control = NegativeControl::none);

  /// `look` is called on every bucket when this rank's gradients of a micro-batch are in it and
  /// before they are summed over ranks: for faults made on purpose.
  void before_sums(std::function<void(const Stream&, const Bucket&)> look) {
    look_ = std::move(look);
  }
  /// Local: before the backward of micro-batch j (0-based inside the rank) through a piece of the
  /// model; each piece sees them in order.
  void begin_micro_batch(const Stream& stream, std::int64_t j);
  /// Collective over the data ranks: start what is to be reduced, and gather what is to be read.
  void begin_gradients(int bucket) override;
  void gradients_ready(int bucket) override;
  void acquire(int bucket) override { gatherer_->acquire(bucket); }
  void release(int bucket) override { gatherer_->release(bucket); }
  /// Collective: completes all reductions. Seconds spent waiting: the communication that was not
  /// hidden.
  double finish();

  void add_to(MemoryPlan& plan) const;

 private:
  const Bucket& bucket(int index) const {
    return storage_->parameters().buckets()[static_cast<std::size_t>(index)];
  }
  /// The first micro-batch, or one that is taken for it.
  bool starts_sum(std::int64_t j) const {
    return j == 0 || (j == 1 && control_ == NegativeControl::micro_batch_lost);
  }
  Summation order() const { return reproducible_ ? Summation::tree : Summation::fast; }
  std::int64_t level_size() const;
  TensorView level(std::size_t l, const Bucket& bucket) const;
  bool combine(std::int64_t j, const TensorView& fresh, const Bucket& bucket);
  void accumulate(int index);
  void reduce_replicas();

  ParameterStorage* storage_;
  ParameterGatherer* gatherer_;
  CommQueue replica_queue_;
  Stream stream_;
  std::int64_t micro_batches_;
  std::int64_t current_ = 0;
  bool reproducible_;
  NegativeControl control_;
  std::function<void(const Stream&, const Bucket&)> look_;
  std::vector<Buffer> levels_;        // level l holds the sum of 2^l micro-batches
  std::optional<BucketRing> ring_;    // stages 2 and 3: whole gradients
  std::vector<std::int64_t> summed_;  // micro-batches in the slice of each bucket, likewise
};

}  // namespace choir
