#pragma once
// Makes the values of sharded parameters whole again.
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "choir/nn/parameter.hpp"
#include "choir/parallel/sharding/bucket_ring.hpp"
#include "choir/parallel/sharding/parameter_storage.hpp"

namespace choir {

/// Stages 1 and 2 gather all buckets after every update; where the host cannot see the memory of
/// the device all but the first are gathered under the next forward instead, each before it is
/// acquired, so that a recorded step has its gathers where there is work to hide them. Stage 3
/// gathers a bucket at a time, into a slot that it keeps until another bucket needs it: from
/// acquire() on, and `prefetch` buckets ahead of it in the direction the model walks, so that the
/// gather of the next bucket overlaps the computation of this one. Backward walks from a layer to
/// its last tile, down to its first, and on to the layer below. Bytes a step and rank:
///
///   stage 1, 2   the compute copy once
///   stage 3      the compute copy for every forward and every backward, less what was still in its
///                slot (the embedding and the head of a micro-batch, the blocks where it turns
///                round)
///
/// With offloaded parameters this rank's slice comes from host memory, on a stream of its own,
/// before it is gathered; the floor a step and rank is the same bytes over the link of the host.
///
/// Frozen parameters beside trained ones have buckets of their own, gathered with those of the same
/// part of the model; stages 1 and 2 never gather them again.
///
/// Stage 0 has nothing to do. Every rank of a group must walk the same way: all calls that may
/// gather are collective over the group.
class ParameterGatherer final : public BucketHooks {
 public:
  ParameterGatherer(ParameterStorage& storage, Device& device);

  void acquire(int bucket) override;
  void release(int bucket) override;

  /// The masters are new, written from outside: makes values of them.
  void publish(const Stream& stream);
  /// AdamW has updated the masters (and copies) of the bucket: starts what follows.
  void updated(const Bucket& bucket);
  /// ... of all buckets: completes it. Seconds of waiting.
  double finish_update();
  /// Between steps: nothing of an update is left to be gathered, for who reads whole values without
  /// acquiring them.
  void complete_update();
  /// Local, between passes: what slots still have is not to be used, nor what was gathered under
  /// a forward. For who changes masters or slots without this object, as a replayed graph does.
  void forget();

  /// The queue of the communicator of the group, for all who use it asynchronously.
  CommQueue& queue() { return queue_; }
  void add_to(MemoryPlan& plan) const;

 private:
  const Bucket& bucket(int index) const {
    return storage_->parameters().buckets()[static_cast<std::size_t>(index)];
  }
  /// The queue of the communicator that gathers.
  CommQueue& gathers() { return storage_->sharding().gathers_apart() ? gather_queue_ : queue_; }
  bool gather(int index);
  std::uint64_t start_gather(const Bucket& bucket);
  /// Stages 1 and 2: starts what an update left to be gathered of this bucket and some behind it,
  /// and waits for this one.
  void gather_ahead(int index);
  bool gather_alone(int index);
  void await(int index);
  void fill(int index, const TensorView& own);
  /// Waits for fetches, of the bucket or all of them.
  void fetched(int index);
  void settle();
  void prefetch(int index);
  /// What backward acquires after a bucket; -1: nothing.
  int below(int index) const;

  ParameterStorage* storage_;
  Stream stream_;
  CommQueue queue_, gather_queue_;
  std::optional<BucketRing> ring_;
  // Stages 1 and 2 under a forward: of each bucket the gather that it waits for.
  struct Later {
    bool due = false;          // an update came after the last gather
    std::uint64_t ticket = 0;  // of one that was started and nobody waited for; 0: none
  };
  std::vector<Later> later_;
  int last_ = 0;    // acquired
  int walked_ = 0;  // buckets that the model names; those beside them follow
  // Values in host memory: the stream that fetches them, and what it has reached.
  std::unique_ptr<SideStream> fetches_;
  std::unique_ptr<Event> free_;
  struct Fetch {
    std::unique_ptr<Event> done;
    bool awaited = true;
  };
  std::vector<Fetch> fetched_;  // of each bucket
};

}  // namespace choir
