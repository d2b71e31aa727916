#pragma once
// A parameter is one *logical* tensor plus a description of how ranks share it. Initialisation,
// gradient reduction, the clipping norm, optimizer sharding, tied weights and checkpoints are
// derived from this description, never listed by hand.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/layout.hpp"
#include "choir/core/tensor.hpp"

namespace choir {

/// The least multiple of `unit` that holds `n`.
constexpr std::int64_t round_up(std::int64_t n, std::int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

/// This rank's place among those that share each layer.
struct TensorSplit {
  int rank = 0, ranks = 1;
  bool sequence = false;  ///< norms and residual stream hold a share of the rows
};

/// A range along a dim that is cut by itself, as the rows of q, k and v, or of gate and up.
struct Section {
  std::int64_t extent = 0;
  /// It can be cut into this many (heads); 0: into any number that divides it. Where the ranks are
  /// a multiple of it, each part is held by neighbouring ranks, whose gradients of it are summed.
  std::int64_t parts = 0;
};

/// Default: every rank holds the whole tensor and its whole gradient. What follows from it (shape,
/// elements, their owners, sums) is computed below.
struct ShardSpec {
  /// Tensor dim cut into equal parts along `axis`; -1: not cut.
  int split_dim = -1;
  Axis axis = Axis::tensor;
  /// Ranges along split_dim that are cut separately; empty: one.
  std::vector<Section> sections;
  /// Not 0: an extent that need not divide, or dim 0 of a tensor that is not cut. Every rank gets
  /// the same multiple of this, or of the largest of its halves down to kLeastAlignment that adds
  /// at most a sixteenth. What lies beyond the extent is padding: zero, not counted, not stored.
  std::int64_t alignment = 0;
  static constexpr std::int64_t kLeastAlignment = 8;
  /// This parameter is one of `tiles` of the logical tensor (memory-centric tiling): the tile-th
  /// equal part of each section as this rank has it, with a place and a bucket of its own.
  int tile = 0, tiles = 1;
  /// Axes along which each rank holds only a part of the gradient, to be summed.
  std::vector<Axis> partial;
};

struct Init {
  enum class Kind { zeros, ones, normal } kind = Kind::zeros;
  double std = 0;  ///< of `normal`

  static Init zeros() { return {}; }
  static Init ones() { return {Kind::ones, 0}; }
  static Init normal(double std) { return {Kind::normal, std}; }
};

struct Parameter {
  std::string name;  ///< "blocks.3.attention.qkv.weight"
  Shape shape;       ///< logical
  Init init;
  bool decay = false;  ///< weight decay applies
  /// False: frozen. It has no gradient (the view has no memory), no moments, and no part in the
  /// clipping norm; nothing updates it. Set before the parameters are placed.
  bool trainable = true;
  /// The first gradient contribution of a step overwrites (a GEMM does); otherwise the gradient is
  /// zeroed before the step and everything adds.
  bool gradient_overwritten = false;
  ShardSpec shard;
  /// Not nullptr: a copy of that parameter (a tied weight at another place of use, which may be on
  /// another rank): begins with the same values and is never counted or stored. Its gradient is the
  /// part of its place of use; who joins both parts keeps the copies equal.
  const Parameter* tied_to = nullptr;

  // Set when the next tile of the same logical tensor is added; see ParameterSet::all().
  const Parameter* next_tile = nullptr;

  // Set when the parameter is added.
  TensorSplit split;
  Shape local;  ///< what this rank holds, padding included

  // Set when the parameter is placed.
  int bucket = -1;          ///< among those of this rank; -1: not on this rank
  std::int64_t offset = 0;  ///< elements from the start of the bucket
  /// Where it would begin among all elements of the model, without padding: position + i names
  /// element i of the logical tensor in every layout. Copies have that of what they are copies of.
  std::int64_t position = 0;
  TensorView value;  ///< what the model computes with; this and the next two are local
  /// What the optimizer updates (value itself when the types agree); empty where no rank has it
  /// whole. Likewise value and gradient between their uses.
  TensorView master;
  TensorView gradient;
  bool gradient_live = false;

  bool resident() const { return bucket >= 0; }
  std::int64_t count() const { return shape.count(); }
  std::int64_t local_count() const { return local.count(); }
  /// True when the next contribution must be added; marks the gradient as written.
  bool accumulate() {
    const bool add = gradient_live;
    gradient_live = true;
    return add;
  }
};

/// What persists but is not trained: counters, loss scale. It lives on the host;
/// RunningStatistics are what the device has of the kind.
struct State {
  std::string name;
  TensorView value;
};

/// Running mean and variance of a norm over the frames of a micro-batch (batch normalisation): they
/// persist but are not trained, and are what evaluation normalises with. A micro-batch leaves its
/// own statistics in a place of its own, again when it is run again; at the end of the step those
/// of all micro-batches are folded in, in the order of their global index (StatisticsStorage).
struct RunningStatistics {
  std::string name;  ///< of the norm
  /// Its weight [C]: the channels are divided over ranks as this is, and are where it is.
  const Parameter* weight = nullptr;

  // StatisticsStorage sets these where the weight is resident: for the channels of this rank, in
  // the type of statistics.
  TensorView mean, variance;  ///< [c]
  TensorView records;  ///< [micro-batches of this rank, 2, c]: mean, unbiased variance; empty
                       ///< outside training
  TensorView frames;   ///< [micro-batches of this rank]: that counted; of all norms the same
};

/// Contiguous parameters that are reduced, updated and sharded together: one block of the model.
/// Decayed parameters come first. Local sizes, in elements.
struct Bucket {
  std::string name;
  int tile = 0;  ///< from 1 on, in the buckets of tiles, which follow that of their layer
  std::vector<Parameter*> parameters;
  std::int64_t decayed = 0;  ///< elements of the leading decayed range, alignment gaps included
  std::int64_t size = 0;     ///< padded: divisible by the number of data-parallel ranks
  std::int64_t offset = 0;   ///< from the start of the flat memory of all buckets
  /// False: its parameters are frozen. Values are kept, gathered and stored as all others.
  bool trainable = true;
  /// The bucket with the frozen parameters of the same part of the model, where others of it are
  /// trained; -1: there is none. It is acquired and released with this one.
  int frozen = -1;
  bool beside = false;  ///< it is that of another
};

/// How a model borrows its parameters: it says when a bucket is needed and when its gradients are
/// complete; what happens then (nothing, an all-reduce, a gather) is decided elsewhere. Every rank
/// of a stage says the same in the same order, in every pass of every mode: that is what makes
/// gathers collective.
class BucketHooks {
 public:
  virtual ~BucketHooks() = default;
  /// The values of the bucket are about to be read (forward or backward).
  virtual void acquire(int bucket) { (void)bucket; }
  /// ... and are not needed until acquired again.
  virtual void release(int bucket) { (void)bucket; }
  /// The first contribution of this micro-batch to the gradients is about to be written.
  virtual void begin_gradients(int bucket) { (void)bucket; }
  /// This micro-batch adds nothing more to the gradients of the bucket.
  virtual void gradients_ready(int bucket) { (void)bucket; }
};

// What follows from a shard spec: which elements of a logical tensor a rank holds, which of them it
// answers for, and which gradients are sums over ranks. Pure functions of the description, for any
// rank of any number.

/// Consecutive elements of the logical tensor that are consecutive in what a rank holds.
struct ShardRun {
  std::int64_t logical = 0, local = 0, count = 0;
  bool owned = true;  ///< of the ranks that hold it this one counts and stores it
};

/// Consecutive local elements.
struct LocalRange {
  std::int64_t first = 0, count = 0;
};

/// A gradient that ranks hold in part: their `count` elements from `local` on are terms of elements
/// [place, place + count) of `size` that the ranks have together.
struct PartialRun {
  std::int64_t local = 0, count = 0;
  std::int64_t place = 0, size = 0;
};

/// Symbols are the columns of logits: 64 of 16 bits fill a cache line, and 8 are the 16 bytes
/// without which no product on a GPU loads whole vectors.
inline constexpr std::int64_t kVocabularyAlignment = 64;

/// Throws Error when the spec cannot be cut so; decks are checked before.
Shape local_shape(const Shape& logical, const ShardSpec& spec, const TensorSplit& split);

/// In the order of local elements; padding is in no run.
std::vector<ShardRun> shard_runs(const Shape& logical, const ShardSpec& spec,
                                 const TensorSplit& split);
inline std::vector<ShardRun> shard_runs(const Parameter& p) {
  return shard_runs(p.shape, p.shard, p.split);
}

/// The owned runs of a rank, neighbours joined: over all ranks every element once.
std::vector<LocalRange> owned_ranges(const Parameter& p, int rank);

/// Empty when this rank's gradient is whole.
std::vector<PartialRun> partial_runs(const Parameter& p);

}  // namespace choir
