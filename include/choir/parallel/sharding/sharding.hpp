#pragma once
// Who keeps what of the training state: ZeRO, and the ranges of buckets that ranks own.
#include <algorithm>
#include <cstdint>
#include <memory>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/nn/parameter.hpp"

namespace choir {

struct ZeroOptions {
  static constexpr int kAll = 0, kNode = -1;
  int stage = 0;
  int group = kAll;  ///< consecutive data ranks that share one copy; kNode: those of a node
  int prefetch = 1;  ///< stage 3: buckets gathered ahead of their use
};

/// Elements [first, first + count) of something flat.
struct Range {
  std::int64_t first = 0, count = 0;
  std::int64_t end() const { return first + count; }
};

/// What two ranges share; count 0: nothing.
inline Range overlap(const Range& a, const Range& b) {
  const std::int64_t first = std::max(a.first, b.first), end = std::min(a.end(), b.end());
  return {first, std::max<std::int64_t>(0, end - first)};
}

/// ZeRO (Rajbhandari et al. 2020): which part of the training state a data-parallel rank keeps.
///
///   stage  spread over the ranks of a group                     whole on every rank
///   0      nothing                                              everything
///   1      moments, masters beside a compute copy               gradients, values
///   2      and gradients (whole only bucket by bucket)          values
///   3      and parameters (whole only around their use)         -
///
/// Rank r of a group owns the r-th slice of every bucket. With groups smaller than the data axis
/// (hybrid sharding) each group has one copy of the state; equal slices of the groups are replicas.
class Sharding {
 public:
  /// Stage 0 over the ranks of `data`. Implicit: what knows no stages passes its communicator.
  Sharding(Communicator& data) : data_(&data), group_(&data) {}
  /// Over the replicas of the mesh, collectively. DeckError on every rank when the groups do not
  /// come out.
  Sharding(Mesh& mesh, const ZeroOptions& options);

  /// Local: data ranks of a group of this mesh. DeckError as above.
  static int group_size(const Mesh& mesh, const ZeroOptions& options);

  int stage() const { return options_.stage; }
  int prefetch() const { return options_.prefetch; }
  bool values_sharded() const { return stage() == 3; }
  bool gradients_sharded() const { return stage() >= 2; }

  /// All ranks with these parameters: those of the data axis, times those of the context axis,
  /// which work on other positions of the same micro-batches (see Mesh::replicas).
  Communicator& data() const { return *data_; }
  int data_ranks() const { return data_->size() / contexts_; }
  /// Those that share one copy of the state.
  Communicator& group() const { return *group_; }
  /// The same ranks, for gathers of values: over NCCL by a communicator of their own, so that a
  /// gather does not stand behind a sum of gradients in its stream.
  Communicator& gathers() const { return own_gathers_ ? *own_gathers_ : *group_; }
  bool gathers_apart() const { return own_gathers_ != nullptr; }
  /// Those with the same slice in other groups; nullptr: there is one group.
  Communicator* replicas() const { return replicas_.get(); }
  int replica() const { return replicas_ ? replicas_->rank() : 0; }
  int replica_count() const { return replicas_ ? replicas_->size() : 1; }

  /// A bucket has this many slices, of which this rank owns one.
  int slices() const { return stage() == 0 ? 1 : group_->size(); }
  Range slice(const Bucket& bucket) const;
  /// What this rank owns of a parameter of the bucket, in local elements of the parameter (see
  /// Parameter::local); perhaps nothing.
  Range owned(const Bucket& bucket, const Parameter& parameter) const;

  /// Which of the micro-batches of a step this rank takes: its j-th is first + j * stride. Stages 0
  /// and 1 sum inside a rank first, so ranks own runs of them; 2 and 3 sum over the group first, so
  /// its ranks take turns. Either way the sums follow one tree over the micro-batches.
  std::int64_t first_micro_batch(std::int64_t per_rank) const;
  std::int64_t micro_batch_stride() const {
    return gradients_sharded() ? group_->size() / contexts_ : 1;
  }

 private:
  /// Makes the group of `size` neighbouring replicas that this rank is in.
  void form_groups(Mesh& mesh, int size);

  ZeroOptions options_;
  int contexts_ = 1;
  Communicator* data_;
  Communicator* group_;
  std::unique_ptr<Communicator> own_group_, own_gathers_, replicas_;
};

}  // namespace choir
