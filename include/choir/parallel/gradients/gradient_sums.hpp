#pragma once
// The path from the gradients of this rank to their sums: what ranks of the tensor axis hold in
// part is added up bucket by bucket (PartialGradients), micro-batches and data-parallel ranks are
// summed (GradientReducer), and last the places of use of a tied weight (TiedGradients).
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/core/memory_plan.hpp"
#include "choir/device/device.hpp"
#include "choir/nn/parameter.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/parallel/sharding/parameter_gatherer.hpp"
#include "choir/parallel/sharding/parameter_storage.hpp"

namespace choir {

/// Sums the gradients that ranks of the tensor axis hold in part (norms under sequence parallelism,
/// heads of keys and values held by several ranks) before they are reduced over the data axis.
/// Which ones is derived from the shard specs; those of a bucket travel together. They are a few
/// vectors a block: 2 C floats a norm, so the call is blocking.
class PartialGradients final : public BucketHooks {
 public:
  /// Collective over `tensor`. `then` hears of every bucket after its gradients are whole.
  PartialGradients(ParameterSet& parameters, Device& device, DType gradient, Communicator& tensor,
                   Summation order, BucketHooks& then);

  /// Local: before the backward of a micro-batch through a piece of the model. `complete`: its
  /// gradients leave the rank when they are ready, so they must be whole by then. Otherwise more
  /// micro-batches add to them first.
  void begin_micro_batch(const Stream& stream, bool complete);

  void acquire(int bucket) override { then_->acquire(bucket); }
  void release(int bucket) override { then_->release(bucket); }
  void begin_gradients(int bucket) override { then_->begin_gradients(bucket); }
  /// Collective over tensor where something is partial.
  void gradients_ready(int bucket) override;

  void add_to(MemoryPlan& plan) const;

 private:
  struct Run {
    const Parameter* parameter;
    std::int64_t local, count;  ///< of its gradient
    std::int64_t place;         ///< in the message
  };
  struct Message {
    std::vector<Run> runs;
    std::int64_t size = 0;
  };

  Communicator* tensor_;
  Summation order_;
  BucketHooks* then_;
  Stream stream_;
  bool complete_ = true;
  std::vector<Message> messages_;  // by bucket
  std::unique_ptr<CommBuffer> memory_;
  TensorView message_;
};

/// Sums gradients over micro-batches and data-parallel ranks.
///
/// Stages 0 and 1: micro-batches add into whole buckets as they come, and the last one starts the
/// all-reduce (stage 1: reduce-scatter) of each bucket as soon as backward has finished with it.
/// Stages 2 and 3: whole gradients exist bucket by bucket, in a few slots; every micro-batch
/// reduces and scatters each of them and adds the result to the slice, so that accumulation over A
/// micro-batches moves A times the bytes. With several groups the slices are all-reduced over the
/// replicas at the end of the step. Bytes a step and rank, with G of gradients:
///
///   stage 0   all-reduce G          stage 2, 3   reduce-scatter A G
///   stage 1   reduce-scatter G      groups       and all-reduce G / slices
///
/// Buckets of frozen parameters have no gradients, and nothing happens to them.
///
/// In reproducible mode both sums follow one fixed binary tree over the global micro-batch index: a
/// rank sums what it takes by a binary counter (as carries of j+1), the ranks a tree. Where ranks
/// own contiguous micro-batches (Sharding::first_micro_batch), the tree over j comes below that
/// over ranks; in stages 2 and 3 ranks take turns, and it comes above that of the group. With
/// powers of two the tree, and so every bit of the sum, is that of one rank.
class GradientReducer final : public BucketHooks {
 public:
  /// `micro_batches` per rank and step. Collective from stage 2 on.
  GradientReducer(ParameterStorage& storage, ParameterGatherer& gatherer, Device& device,
                  std::int64_t micro_batches, bool reproducible);

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
  std::function<void(const Stream&, const Bucket&)> look_;
  std::vector<Buffer> levels_;        // level l holds the sum of 2^l micro-batches
  std::optional<BucketRing> ring_;    // stages 2 and 3: whole gradients
  std::vector<std::int64_t> summed_;  // micro-batches in the slice of each bucket, likewise
};

/// Joins the gradients of tied weights that live in several places: the embedding on the first
/// stage of a pipeline and its copy, the head, on the last (or both on one rank, where each place
/// of use keeps its own sum). Each holds the gradient of its place of use, summed over
/// micro-batches and data-parallel ranks; afterwards both hold the same sum, so that equal copies
/// stay equal.
///
/// The buckets of both are laid out alike, so ranks with the same slice exchange slices: with G
/// bytes of gradient and ZeRO over d ranks, G / d there and back.
class TiedGradients {
 public:
  /// Local. `stages`: the pipeline axis, of which `embedding` has the embedding and the last one
  /// the head.
  TiedGradients(ParameterStorage& storage, Device& device, Communicator& stages, int embedding);

  /// Collective over the stages that hold a place of use, after all reductions over data ranks.
  void join(const Stream& stream);

  void add_to(MemoryPlan& plan) const;

 private:
  /// This rank's slice of the gradient.
  TensorView slice(const Parameter& place) const;
  void exchange(const Stream& stream, const Parameter& place, int peer);

  ParameterStorage* storage_;
  Communicator* stages_;
  int embedding_;
  Buffer memory_;  ///< for the slice of the other stage
};

/// The whole path, in the order in which gradients take it.
class GradientPath {
 public:
  struct Options {
    std::int64_t micro_batches = 1;  ///< per rank and step
    bool reproducible = false;
    int embedding_stage = 0;  ///< that has the embedding whose weight the head shares
    /// See GradientReducer::before_sums; may be empty.
    std::function<void(const Stream&, const Bucket&)> before_sums{};
  };
  /// Collective over the axes.
  GradientPath(ParameterStorage& storage, ParameterGatherer& gatherer, Device& device,
               Communicator& tensor, Communicator& stages, const Options& options);

  /// What forward and backward tell of the buckets they use and of the gradients they have written.
  BucketHooks& hooks() { return partial_; }
  /// Local: before the backward of micro-batch j (0-based inside the rank) through a piece of the
  /// model; each piece sees them in order.
  void begin_micro_batch(const Stream& stream, std::int64_t j);
  /// Collective: afterwards the storage holds sums.
  void finish(const Stream& stream);

  void add_to(MemoryPlan& plan) const;

 private:
  std::int64_t micro_batches_;
  bool complete_;  // gradients leave this rank with every micro-batch
  GradientReducer reducer_;
  PartialGradients partial_;
  TiedGradients tied_;
};

}  // namespace choir
