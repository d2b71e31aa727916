#pragma once
// ZeRO: the distribution of the training state, and the ranges of buckets that ranks own.
#include <algorithm>
#include <cstdint>
#include <memory>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/nn/parameter.hpp"

namespace choir {

struct ZeroOptions {
  static constexpr int kAll = 0, kNode = -1;
  int stage = 0;
  int group = kAll;  ///< consecutive data ranks that share one copy; kNode: the ranks of a node
  int prefetch = 1;  ///< stage 3: buckets gathered ahead of their use
};

/// Elements [first, first + count) of a flat array.
struct Range {
  std::int64_t first = 0, count = 0;
  std::int64_t end() const { return first + count; }
};

/// The intersection of two ranges; its count is 0 if it is empty.
inline Range overlap(const Range& a, const Range& b) {
  const std::int64_t first = std::max(a.first, b.first), end = std::min(a.end(), b.end());
  return {first, std::max<std::int64_t>(0, end - first)};
}

/// ZeRO (Rajbhandari et al. 2020): the part of the training state that a data-parallel rank keeps.
///
///   stage  spread over the ranks of a group                     whole on every rank
///   0      nothing                                              everything
///   1      moments, masters beside a compute copy               gradients, values
///   2      and gradients (whole only bucket by bucket)          values
///   3      and parameters (whole only around their use)         -
///
/// Rank r of a group owns the r-th slice of every bucket. With groups smaller than the data axis
/// (hybrid sharding) each group has one copy of the state; equal slices of different groups are
/// replicas.
class Sharding {
 public:
  /// Stage 0 over the ranks of `data`. Implicit, so that callers without ZeRO can pass their
  /// communicator.
  Sharding(Communicator& data) : data_(&data), group_(&data) {}
  /// Over the replicas of the mesh; collective. Throws DeckError on every rank if the groups do not
  /// divide the ranks.
  Sharding(Mesh& mesh, const ZeroOptions& options);

  /// Local: the number of data ranks in a group of this mesh. Throws DeckError as above.
  static int group_size(const Mesh& mesh, const ZeroOptions& options);

  int stage() const { return options_.stage; }
  int prefetch() const { return options_.prefetch; }
  bool values_sharded() const { return stage() == 3; }
  bool gradients_sharded() const { return stage() >= 2; }

  /// All ranks with these parameters: the ranks of the data axis, times those of the context axis,
  /// which work on other positions of the same micro-batches (see Mesh::replicas).
  Communicator& data() const { return *data_; }
  int data_ranks() const { return data_->size() / contexts_; }
  /// The ranks that share one copy of the state.
  Communicator& group() const { return *group_; }
  /// The same ranks, for gathers of values. Over NCCL they have a separate communicator, so that a
  /// gather does not queue behind a gradient reduction in its stream.
  Communicator& gathers() const { return own_gathers_ ? *own_gathers_ : *group_; }
  bool gathers_apart() const { return own_gathers_ != nullptr; }
  /// The ranks with the same slice in other groups; nullptr if there is one group.
  Communicator* replicas() const { return replicas_.get(); }
  int replica() const { return replicas_ ? replicas_->rank() : 0; }
  int replica_count() const { return replicas_ ? replicas_->size() : 1; }

  /// The number of slices of a bucket; this rank owns one.
  int slices() const { return stage() == 0 ? 1 : group_->size(); }
  Range slice(const Bucket& bucket) const;
  /// The elements of a parameter that this rank owns, in local elements of the parameter (see
  /// Parameter::local); may be empty.
  Range owned(const Bucket& bucket, const Parameter& parameter) const;

  /// The micro-batches of a step that this rank takes: its j-th is first + j * stride. Stages 0 and
  /// 1 sum inside a rank first, so ranks own runs of them; stages 2 and 3 sum over the group first,
  /// so its ranks take turns. Either way the sums follow one tree over the micro-batches.
  std::int64_t first_micro_batch(std::int64_t per_rank) const;
  std::int64_t micro_batch_stride() const {
    return gradients_sharded() ? group_->size() / contexts_ : 1;
  }

 private:
  /// Forms the group of `size` neighbouring replicas that contains this rank.
  void form_groups(Mesh& mesh, int size);

  ZeroOptions options_;
  int contexts_ = 1;
  Communicator* data_;
  Communicator* group_;
  std::unique_ptr<Communicator> own_group_, own_gathers_, replicas_;
};

}  // namespace choir
