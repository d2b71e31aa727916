#pragma once
// A parameter is one *logical* tensor plus a description of how ranks share it. Initialisation,
// gradient reduction, the clipping norm, optimizer sharding, tied weights and checkpoints are
// derived from this description; none of them lists parameters.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/layout.hpp"
#include "choir/core/tensor.hpp"

namespace choir {

/// The smallest multiple of `unit` that is at least `n`.
constexpr std::int64_t round_up(std::int64_t n, std::int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

/// This rank's index among the ranks that share each layer.
struct TensorSplit {
  int rank = 0, ranks = 1;
  bool sequence = false;  ///< norms and residual stream hold a share of the rows
};

/// A range along a dim that is divided separately, such as the rows of q, k and v, or of gate and
/// up.
struct Section {
  std::int64_t extent = 0;
  /// Maximum number of parts (heads); 0: any divisor of the extent. If the number of ranks is a
  /// multiple of it, neighbouring ranks hold the same part, and their gradients of it are summed.
  std::int64_t parts = 0;
};

/// Default: every rank holds the whole tensor and its whole gradient. Shape, elements, owners and
/// sums are derived from this below.
struct ShardSpec {
  /// Tensor dim that is divided into equal parts along `axis`; -1: none.
  int split_dim = -1;
  Axis axis = Axis::tensor;
  /// Ranges along split_dim that are divided separately; empty: one range.
  std::vector<Section> sections;
  /// Not 0 for an extent that need not be divisible, or dim 0 of a tensor that is not divided.
  /// Every rank gets the same multiple of this, or of the largest of its halves down to
  /// kLeastAlignment that adds at most a sixteenth. Elements beyond the extent are padding: zero,
  /// not counted, not stored.
  std::int64_t alignment = 0;
  static constexpr std::int64_t kLeastAlignment = 8;
  /// This parameter is tile number `tile` of `tiles` of the logical tensor (memory-centric tiling):
  /// that equal part of each section as this rank has it, with an offset and a bucket of its own.
  int tile = 0, tiles = 1;
  /// Axes along which each rank holds only a term of the gradient, to be summed.
  std::vector<Axis> partial;
};

struct Init {
  enum class Kind { zeros, ones, normal } kind = Kind::zeros;
  double std = 0;  ///< for `normal`

  static Init zeros() { return {}; }
  static Init ones() { return {Kind::ones, 0}; }
  static Init normal(double std) { return {Kind::normal, std}; }
};

/// The use of a parameter, by which update rules of whole matrices choose theirs.
enum class Use {
  other,   ///< embeddings, heads over a vocabulary, norms, biases
  hidden,  ///< the matrix [out, in] of a hidden layer, or a kernel [out, in x taps] of a
           ///< convolution
  adapter  ///< a factor of a low-rank adapter
};

struct Parameter {
  std::string name;  ///< "blocks.3.attention.qkv.weight"
  Shape shape;       ///< logical
  Init init;
  bool decay = false;  ///< weight decay applies
  /// Each of the sections along dim 0 (ShardSpec::sections) of a hidden matrix is a matrix of its
  /// own.
  Use use = Use::other;
  /// False: frozen. It has no gradient (the view has no memory), no moments, does not count in the
  /// clipping norm, and is never updated. Set before the parameters are placed.
  bool trainable = true;
  /// True for a frozen matrix that is kept quantised (ParameterSet::pack). It has no master, and
  /// its value has memory only between acquire() and release() of its bucket.
  bool packed = false;
  /// The first gradient contribution of a step overwrites (as a GEMM does); otherwise the gradient
  /// is zeroed before the step and every contribution adds.
  bool gradient_overwritten = false;
  ShardSpec shard;
  /// Not nullptr for a copy of that parameter (a tied weight that is used again, possibly on
  /// another rank). A copy has the same initial values and is never counted or stored. Its gradient
  /// has only the contributions of its own use; the code that sums both gradients keeps the copies
  /// equal.
  const Parameter* tied_to = nullptr;

  // Set when the next tile of the same logical tensor is added; see ParameterSet::all().
  const Parameter* next_tile = nullptr;

  // Set when the parameter is added.
  TensorSplit split;
  Shape local;  ///< part of this rank, padding included

  // Set when the parameter is placed.
  int bucket = -1;          ///< index among the buckets of this rank; -1: not on this rank
  std::int64_t offset = 0;  ///< elements from the start of the bucket
  /// Index of its first element among all elements of the model, without padding: position + i
  /// identifies element i of the logical tensor in every layout. Copies have the position of the
  /// original.
  std::int64_t position = 0;
  TensorView value;  ///< read by the model; this and the next two are local
  /// Updated by the optimizer (equal to value if the types agree); empty if no rank has it whole.
  /// Value and gradient are empty between their uses in the same case.
  TensorView master;
  TensorView gradient;
  bool gradient_live = false;

  bool resident() const { return bucket >= 0; }
  std::int64_t count() const { return shape.count(); }
  std::int64_t local_count() const { return local.count(); }
  /// Returns true if the next contribution must be added; marks the gradient as written.
  bool accumulate() {
    const bool add = gradient_live;
    gradient_live = true;
    return add;
  }
};

/// Persistent data that are not trained: counters, loss scale. They live on the host;
/// RunningStatistics are such data on the device.
struct State {
  std::string name;
  TensorView value;
};

/// Running mean and variance of a norm over the frames of a micro-batch (batch normalisation). They
/// persist but are not trained, and evaluation normalises with them. Each micro-batch writes its
/// own statistics into a record of its own, and writes it again if it is repeated; at the end of
/// the step the records of all micro-batches are folded in, in the order of their global index
/// (StatisticsStorage).
struct RunningStatistics {
  std::string name;  ///< name of the norm
  /// Its weight [C]. The channels are divided over ranks and placed like this weight.
  const Parameter* weight = nullptr;

  // Set by StatisticsStorage where the weight is resident: the channels of this rank, in the type
  // of statistics.
  TensorView mean, variance;  ///< [c]
  TensorView records;  ///< [micro-batches of this rank, 2, c]: mean, unbiased variance; empty
                       ///< outside training
  TensorView frames;   ///< [micro-batches of this rank]: valid frames; equal for all norms
};

/// Contiguous parameters that are reduced, updated and sharded together: one block of the model.
/// Decayed parameters come first. Sizes are local, in elements.
struct Bucket {
  std::string name;
  int tile = 0;  ///< from 1 on in the buckets of tiles, which follow that of their layer
  std::vector<Parameter*> parameters;
  std::int64_t decayed = 0;  ///< elements of the leading decayed range, alignment gaps included
  std::int64_t size = 0;     ///< padded: divisible by the number of data-parallel ranks
  std::int64_t offset = 0;   ///< from the start of the flat memory of all buckets
  /// False if its parameters are frozen. Values are kept, gathered and stored like all others.
  bool trainable = true;
  /// The bucket with the frozen parameters of the same part of the model if other parameters of it
  /// are trained; -1: none. It is acquired and released together with this one.
  int frozen = -1;
  bool beside = false;  ///< true if it is the `frozen` bucket of another one
  /// True if its parameters are packed. Such buckets are in memory of their own, to which `offset`
  /// refers. A bucket of frozen parameters can have one beside it.
  bool packed = false;
};

/// The model's requests for its parameters: it reports when a bucket is needed and when its
/// gradients are complete. The implementation decides what follows (nothing, an all-reduce, a
/// gather). Every rank of a stage makes the same calls in the same order, in every pass of every
/// mode, because gathers are collective.
class BucketHooks {
 public:
  virtual ~BucketHooks() = default;
  /// Called before the values of the bucket are read (in forward or backward).
  virtual void acquire(int bucket) { (void)bucket; }
  /// The values are not read again before the next acquire().
  virtual void release(int bucket) { (void)bucket; }
  /// Called before the first contribution of this micro-batch to the gradients.
  virtual void begin_gradients(int bucket) { (void)bucket; }
  /// This micro-batch adds no more to the gradients of the bucket.
  virtual void gradients_ready(int bucket) { (void)bucket; }
};

// Functions of a shard spec: the elements of a logical tensor that a rank holds, the elements that
// it owns, and the gradients that are sums over ranks. They are pure functions of the description,
// for any rank of any number of ranks.

/// Elements that are consecutive both in the logical tensor and in the local one.
struct ShardRun {
  std::int64_t logical = 0, local = 0, count = 0;
  bool owned = true;  ///< true on the one rank, among those that hold the run, that counts and
                      ///< stores it
};

/// Consecutive local elements.
struct LocalRange {
  std::int64_t first = 0, count = 0;
};

/// A gradient of which ranks hold terms: the `count` elements from `local` on are terms of the
/// elements [place, place + count) among the `size` elements that the ranks share.
struct PartialRun {
  std::int64_t local = 0, count = 0;
  std::int64_t place = 0, size = 0;
};

/// Alignment of a vocabulary. Tokens are the columns of logits: 64 elements of 16 bits fill a cache
/// line, and 8 are the 16 bytes that products on a GPU need for loading whole vectors.
inline constexpr std::int64_t kVocabularyAlignment = 64;

/// Throws Error if the spec cannot be divided like this; decks are checked before.
Shape local_shape(const Shape& logical, const ShardSpec& spec, const TensorSplit& split);

/// Runs in the order of local elements; padding is in no run.
std::vector<ShardRun> shard_runs(const Shape& logical, const ShardSpec& spec,
                                 const TensorSplit& split);
inline std::vector<ShardRun> shard_runs(const Parameter& p) {
  return shard_runs(p.shape, p.shard, p.split);
}

/// The same with neighbours joined, whoever owns them.
std::vector<ShardRun> joined_runs(const Parameter& p);

/// The owned runs of a rank, with neighbours joined: every element occurs once over all ranks.
std::vector<LocalRange> owned_ranges(const Parameter& p, int rank);

/// Empty if this rank's gradient is whole.
std::vector<PartialRun> partial_runs(const Parameter& p);

}  // namespace choir
