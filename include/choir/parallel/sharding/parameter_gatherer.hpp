#pragma once
// Gathers whole values of sharded parameters.
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "choir/nn/parameter.hpp"
#include "choir/parallel/sharding/bucket_ring.hpp"
#include "choir/parallel/sharding/parameter_storage.hpp"

namespace choir {

/// Stages 1 and 2 gather all buckets after every update. If the host cannot see device memory, all
/// buckets but the first are gathered during the next forward pass instead, each before it is
/// acquired, so that the gathers of a recorded step overlap with computation. Stage 3 gathers one
/// bucket at a time, into a slot that it keeps until another bucket needs it. acquire() starts
/// `prefetch` further buckets in the direction in which the model is traversed, so that the gather
/// of the next bucket overlaps with the computation of this one. Backward moves from a layer to its
/// last tile, down to its first, and on to the layer below. Bytes per step and rank:
///
///   stage 1, 2   the compute copy once
///   stage 3      the compute copy for every forward and every backward, minus what is still in its
///                slot (the embedding and the head of a micro-batch, the blocks where it turns
///                round)
///
/// With offloaded parameters this rank's slice is copied from host memory, on a separate stream,
/// before it is gathered. The minimum per step and rank is the same number of bytes over the link
/// to the host.
///
/// Frozen parameters beside trained ones have separate buckets, gathered together with those of the
/// same part of the model; stages 1 and 2 never gather them again.
///
/// Packed buckets are dequantised when they are acquired, into a slot of the compute type: in
/// stages 0 to 2 whole and on the spot, in a single slot for each shape; in stage 3 this rank's
/// slice, which is then gathered like others.
///
/// Stage 0 gathers nothing. Every rank of a group must traverse the model in the same order: all
/// calls that may gather are collective over the group.
class ParameterGatherer final : public BucketHooks {
 public:
  ParameterGatherer(ParameterStorage& storage, Device& device);

  void acquire(int bucket) override;
  void release(int bucket) override;

  /// Makes values from masters that were written from outside.
  void publish(const Stream& stream);
  /// Starts the gather of a bucket whose masters (and copies) the optimizer has updated.
  void updated(const Bucket& bucket);
  /// Completes the gathers of all buckets. Returns the seconds spent waiting.
  double finish_update();
  /// Called between steps by readers of whole values that do not acquire them: completes the
  /// gathers that an update left pending.
  void complete_update();
  /// Local, called between passes: invalidates slots and the values gathered under a forward pass.
  /// For callers that change masters or slots without this object, such as a replayed graph.
  void forget();

  /// The queue of the group's communicator, shared by all its asynchronous users.
  CommQueue& queue() { return queue_; }
  void add_to(MemoryPlan& plan) const;

 private:
  const Bucket& bucket(int index) const {
    return storage_->parameters().buckets()[static_cast<std::size_t>(index)];
  }
  /// The queue of the communicator used for gathers.
  CommQueue& gathers() { return storage_->sharding().gathers_apart() ? gather_queue_ : queue_; }
  /// True if the bucket is in a slot while it is in use.
  bool in_ring(int index) const { return ring_ && (sharded_ || bucket(index).packed); }
  bool gather(int index);
  std::uint64_t start_gather(const Bucket& bucket);
  /// Stages 1 and 2: starts the pending gathers of this bucket and some buckets behind it, and
  /// waits for this one.
  void gather_ahead(int index);
  bool gather_alone(int index);
  void await(int index);
  void fill(int index, const TensorView& own);
  /// Waits for the fetch of a bucket; settle() waits for all of them.
  void fetched(int index);
  void settle();
  void prefetch(int index);
  /// The bucket that backward acquires after this one; -1: none.
  int below(int index) const;

  ParameterStorage* storage_;
  bool sharded_;  // stage 3
  Stream stream_;
  CommQueue queue_, gather_queue_;
  std::optional<BucketRing> ring_;
  // Stages 1 and 2: the gather that each bucket waits for under a forward pass.
  struct Later {
    bool due = false;          // an update followed the last gather
    std::uint64_t ticket = 0;  // ticket of a started gather that has not been awaited; 0: none
  };
  std::vector<Later> later_;
  int last_ = 0;    // last bucket acquired
  int walked_ = 0;  // buckets that the model names; those beside them come after these
  // Values in host memory: the stream that fetches them, and the state of each fetch.
  std::unique_ptr<SideStream> fetches_;
  std::unique_ptr<Event> free_;
  struct Fetch {
    std::unique_ptr<Event> done;
    bool awaited = true;
  };
  std::vector<Fetch> fetched_;  // of each bucket
};

}  // namespace choir
