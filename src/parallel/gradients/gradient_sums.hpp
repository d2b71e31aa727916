#pragma once
// The path of gradients on this rank to their global sums, in three steps. PartialGradients adds
// up, bucket by bucket, the partial gradients that several ranks of the tensor axis hold.
// GradientReducer sums over micro-batches and data-parallel ranks. TiedGradients finally adds the
// gradients of the uses of a tied weight.
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
/// key and value heads held by several ranks) before they are reduced over the data axis. The shard
/// specs determine which gradients are partial. Those of a bucket travel in one message. They are a
/// few vectors per block (2 C floats per norm), so the call is blocking.
class PartialGradients final : public BucketHooks {
 public:
  /// Collective over `tensor`. `then` is called for every bucket once its gradients are whole.
  PartialGradients(ParameterSet& parameters, Device& device, DType gradient, Communicator& tensor,
                   Summation order, BucketHooks& then);

  /// Local: called before the backward pass of a micro-batch through a piece of the model. If
  /// `complete`, the gradients leave the rank as soon as they are ready, so they must be whole by
  /// then. Otherwise more micro-batches are added first.
  void begin_micro_batch(const Stream& stream, bool complete);

  void acquire(int bucket) override { then_->acquire(bucket); }
  void release(int bucket) override { then_->release(bucket); }
  void begin_gradients(int bucket) override { then_->begin_gradients(bucket); }
  /// Collective over the tensor axis if the bucket has partial gradients.
  void gradients_ready(int bucket) override;

  void add_to(MemoryPlan& plan) const;

 private:
  struct Run {
    const Parameter* parameter;
    std::int64_t local, count;  ///< in the gradient
    std::int64_t place;         ///< offset in the message
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
/// Stages 0 and 1: micro-batches add into whole buckets as they arrive, and the last one starts the
/// all-reduce (stage 1: reduce-scatter) of each bucket as soon as its backward pass is done. Stages
/// 2 and 3: whole gradients exist bucket by bucket, in a few slots. Every micro-batch reduces and
/// scatters each bucket and adds the result to the slice, so accumulation over A micro-batches
/// moves A times the bytes. With several groups, the slices are all-reduced over the replicas at
/// the end of the step. Bytes per step and rank, where G is the size of the gradients:
///
///   stage 0   all-reduce G          stage 2, 3   reduce-scatter A G
///   stage 1   reduce-scatter G      groups       and all-reduce G / slices
///
/// Buckets of frozen parameters have no gradients and are ignored.
///
/// In reproducible mode both sums follow one fixed binary tree over the global micro-batch index. A
/// rank adds its micro-batches with a binary counter (the carries of j+1), and the ranks add theirs
/// in a tree. Where ranks own contiguous micro-batches (Sharding::first_micro_batch), the tree over
/// j is below the tree over ranks. In stages 2 and 3 ranks take turns, and the tree over j is above
/// that of the group. If all counts are powers of two, the tree and every bit of the sum equal
/// those of a single rank.
class GradientReducer final : public BucketHooks {
 public:
  /// `micro_batches` is per rank and step. Collective from stage 2 on.
  GradientReducer(ParameterStorage& storage, ParameterGatherer& gatherer, Device& device,
                  std::int64_t micro_batches, bool reproducible);

  /// `look` is called for every bucket that contains this rank's gradients of a micro-batch, before
  /// they are summed over ranks. It is used to inject faults.
  void before_sums(std::function<void(const Stream&, const Bucket&)> look) {
    look_ = std::move(look);
  }
  /// Local: called before the backward pass of micro-batch j (0-based on this rank) through a piece
  /// of the model. Each piece sees the micro-batches in order.
  void begin_micro_batch(const Stream& stream, std::int64_t j);
  /// Collective over the data ranks: these calls start reductions and gather values.
  void begin_gradients(int bucket) override;
  void gradients_ready(int bucket) override;
  void acquire(int bucket) override { gatherer_->acquire(bucket); }
  void release(int bucket) override { gatherer_->release(bucket); }
  /// Collective: completes all reductions. Returns the seconds spent waiting, i.e. the
  /// communication that was not hidden.
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
  std::vector<std::int64_t> summed_;  // stages 2 and 3: micro-batches summed in the slice of each
                                      // bucket
};

/// Joins the gradients of tied weights that are used in several places: the embedding on the first
/// stage of a pipeline and its copy, the head, on the last (or both on one rank, where each use has
/// its own sum). Each holds the gradient of its own use, summed over micro-batches and
/// data-parallel ranks. Afterwards both hold the same sum, so equal copies stay equal.
///
/// Both buckets have the same layout, so ranks with the same slice exchange slices: with G bytes of
/// gradient and ZeRO over d ranks, G / d bytes in each direction.
class TiedGradients {
 public:
  /// Local. `stages` is the pipeline axis: stage `embedding` has the embedding and the last one the
  /// head.
  TiedGradients(ParameterStorage& storage, Device& device, Communicator& stages, int embedding);

  /// Collective over the stages that use the weight, after all reductions over data ranks.
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

/// The whole path, in the order in which gradients pass through it.
class GradientPath {
 public:
  struct Options {
    std::int64_t micro_batches = 1;  ///< per rank and step
    bool reproducible = false;
    int embedding_stage = 0;  ///< stage of the embedding whose weight the head shares
    /// See GradientReducer::before_sums; may be empty.
    std::function<void(const Stream&, const Bucket&)> before_sums{};
  };
  /// Collective over the axes.
  GradientPath(ParameterStorage& storage, ParameterGatherer& gatherer, Device& device,
               Communicator& tensor, Communicator& stages, const Options& options);

  /// Forward and backward report here the buckets they use and the gradients they have written.
  BucketHooks& hooks() { return partial_; }
  /// Local: called before the backward pass of micro-batch j (0-based on this rank) through a piece
  /// of the model. Each piece sees the micro-batches in order.
  void begin_micro_batch(const Stream& stream, std::int64_t j);
  /// Collective: afterwards the storage holds the sums.
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
