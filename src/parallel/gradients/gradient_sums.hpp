#pragma once
// The path of gradients on this rank to their global sums, in three steps. PartialGradients adds
// up, bucket by bucket, the partial gradients that several ranks of the tensor axis hold.
// GradientReducer sums over micro-batches and data-parallel ranks. TiedGradients finally adds the
// gradients of the uses of a tied weight.
#include <array>
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
#include "src/parallel/gradients/offloaded_gradients.hpp"

namespace choir {

/// Sums the gradients that ranks of the tensor axis hold in part (norms under sequence parallelism,
/// key and value heads held by several ranks) before they are reduced over the data axis. The shard
/// specs determine which gradients are partial. Those of a bucket travel in one message: a few
/// vectors per block (2 C floats per norm), whose time is the latency of a call.
class PartialGradients final : public BucketHooks {
 public:
  struct Options {
    Summation order = Summation::fast;
    /// The sums of a bucket are complete when the next bucket is ready, so that its backward pass
    /// hides them; otherwise at once, as slots for whole gradients require (stages 2 and 3), which
    /// would be held for longer.
    bool overlapped = false;
  };
  /// Collective over `tensor`. `then` is called for every bucket once its gradients are whole.
  PartialGradients(ParameterSet& parameters, Device& device, DType gradient, Communicator& tensor,
                   const Options& options, BucketHooks& then);

  /// Local: called before the backward pass of a micro-batch through a piece of the model. If
  /// `complete`, the gradients leave the rank as soon as they are ready, so they must be whole by
  /// then. Otherwise more micro-batches are added first.
  void begin_micro_batch(const Stream& stream, bool complete);

  void acquire(int bucket) override { then_->acquire(bucket); }
  void release(int bucket) override { then_->release(bucket); }
  void begin_gradients(int bucket) override { then_->begin_gradients(bucket); }
  /// Collective over the tensor axis if the bucket has partial gradients.
  void gradients_ready(int bucket) override;
  /// Completes the sums in flight. Must be called before the next micro-batch of any piece begins
  /// and after the last bucket.
  void complete_sums();

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
  struct Started {
    int bucket = -1;
    CommRequest* request = nullptr;
    TensorView memory{};
  };
  /// copy(part of a gradient, its place in the message) for all runs of the bucket.
  template <class Copy>
  void each_run(int bucket, const TensorView& memory, const Copy& copy) const;

  Communicator* tensor_;
  Options options_;
  BucketHooks* then_;
  Stream stream_;
  bool complete_ = true;
  std::vector<Message> messages_;  // by bucket
  std::unique_ptr<CommBuffer> memory_;
  TensorView places_;  // [messages in flight, largest message]
  std::int64_t turn_ = 0;
  Started started_;
};

/// Sums gradients over micro-batches and data-parallel ranks.
/// Stages 0 and 1: micro-batches add into whole buckets as they arrive, and the last one starts the
/// all-reduce (stage 1: reduce-scatter) of each bucket as soon as its backward pass is done. Stages
/// 2 and 3: whole gradients exist bucket by bucket, in a few slots. Every micro-batch reduces and
/// scatters each bucket and adds the result to the slice, so accumulation over A micro-batches
/// moves A times the bytes. With several groups, the slice of a bucket is all-reduced over the
/// replicas as soon as its last reduce-scatter is complete, while the buckets before it are in
/// their backward pass. Bytes per step and rank, where G is the size of the gradients:
///
///   stage 0   all-reduce G          stage 2, 3   reduce-scatter A G
///   stage 1   reduce-scatter G      groups       and all-reduce G / slices
///
/// Buckets of frozen parameters have no gradients and are ignored.
///
/// With offloaded gradients (stages 2 and 3) the slices, and the levels of the tree below, are
/// outside: OffloadedSums adds to them. With several groups, the last micro-batch's slice is
/// all-reduced over the replicas in its slot before it is stored; the main stream waits for the
/// additions to it.
///
/// In reproducible mode both sums follow one fixed binary tree over the global micro-batch index. A
/// rank adds its micro-batches with a binary counter (the carries of j+1), and the ranks add theirs
/// in a tree. Where ranks own contiguous micro-batches (Sharding::first_micro_batch), the tree over
/// j is below the tree over ranks. In stages 2 and 3 ranks take turns, and the tree over j is above
/// that of the group. If all counts are powers of two, the tree and every bit of the sum equal
/// those of a single rank.
class GradientReducer final : public BucketHooks {
 public:
  /// Buckets that are reduced over the group while the gradients of the next one are written.
  static constexpr int kInFlight = 2;

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
  /// The windows to gradients in host memory; nullptr if there are none.
  HostWindows* windows() const { return outside_ ? &outside_->windows() : nullptr; }

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
  void accumulate_outside(const Bucket& bucket, std::int64_t j, const BucketRing::Slot& slot);
  void store_of_replicas(int slot);
  void reduce_over_replicas(int index);
  void complete_earlier(std::uint64_t started);

  ParameterStorage* storage_;
  ParameterGatherer* gatherer_;
  CommQueue replica_queue_;
  Stream stream_;
  std::int64_t micro_batches_;
  std::int64_t current_ = 0;
  bool reproducible_;
  std::function<void(const Stream&, const Bucket&)> look_;
  std::vector<Buffer> levels_;              // level l holds the sum of 2^l micro-batches
  std::optional<BucketRing> ring_;          // stages 2 and 3: whole gradients
  std::unique_ptr<OffloadedSums> outside_;  // with offloaded gradients
  std::vector<std::int64_t> summed_;  // stages 2 and 3: micro-batches summed in the slice of each
                                      // bucket
  std::array<std::uint64_t, kInFlight> in_flight_{};  // tickets of the last buckets, with replicas
  std::uint64_t turn_ = 0;
};

/// Joins the gradients of tied weights that are used in several places: the embedding on the first
/// stage of a pipeline and its copy, the head, on the last (or both on one rank, where each use has
/// its own sum). Each holds the gradient of its own use, summed over micro-batches and
/// data-parallel ranks. Afterwards both hold the same sum, so equal copies stay equal.
///
/// Both buckets have the same layout, so ranks with the same slice exchange slices: with G bytes of
/// gradient and ZeRO over d ranks, G / d bytes in each direction. Slices in host memory pass
/// through windows, chunk by chunk.
class TiedGradients {
 public:
  /// Local. `stages` is the pipeline axis: stage `embedding` has the embedding and the last one the
  /// head.
  /// `windows`: for gradients in host memory, otherwise nullptr.
  TiedGradients(ParameterStorage& storage, Device& device, Communicator& stages, int embedding,
                HostWindows* windows);

  /// Collective over the stages that use the weight, after all reductions over data ranks.
  void join(const Stream& stream);

  void add_to(MemoryPlan& plan) const;

 private:
  /// This rank's slice of the gradient.
  TensorView slice(const Parameter& place) const;
  void exchange(const Stream& stream, const Parameter& place, int peer);
  /// Adds the other stage's part of the gradient to `mine`, in device memory.
  void exchange_part(const Stream& stream, const TensorView& mine, int peer);
  void add_outside(const Stream& stream, const TensorView& a, const TensorView& b);

  ParameterStorage* storage_;
  Communicator* stages_;
  int embedding_;
  HostWindows* windows_;
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
