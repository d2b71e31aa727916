#pragma once
// Element types of computation and of optimizer state, and all parameters of a model, grouped into
// buckets in execution order. Parameters that other stages of a pipeline hold are only described:
// counts and the numbering of elements are the same on every rank.

#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/dtype.hpp"
#include "choir/nn/parameter.hpp"

namespace choir {

/// Quantisation of frozen matrices in memory, in blocks of 64 consecutive elements of a matrix
/// (kernels/packing/packing.hpp).
///
///   name  bits  scales                                  bits per weight
///   nf4   4     8 bits, which share a group of 256      4.127
///   int8  8     f32                                     8.5
enum class Packing : std::uint8_t { none, nf4, int8 };

/// Bytes per parameter: weights that the optimizer updates, the copy that GEMMs read, the gradient,
/// two moments.
///
///   name        compute  master  gradient, moments  bytes                    remarks
///   fp64        f64      f64     f64                8 + 0 + 8 + 16 = 32      cpu only
///   fp32        f32      f32     f32                4 + 0 + 4 + 8  = 16
///   bf16-mixed  bf16     f32     f32                4 + 2 + 4 + 8  = 18
///   bf16-true   bf16     bf16    f32                2 + 0 + 4 + 8  = 14      rounds at random
///   fp16-mixed  f16      f32     f32                4 + 2 + 4 + 8  = 18      scales the loss
///
/// Moments may also be bf16, rounded at random: 4 bytes less.
struct Precision {
  DType compute = DType::f32;    ///< activations and the weights that GEMMs read
  DType master = DType::f32;     ///< the weights that the optimizer updates
  DType gradient = DType::f32;   ///< gradient sums and averaged weights
  DType moment = DType::f32;     ///< states of the update rule: as the gradient, or bf16
  DType statistic = DType::f32;  ///< means, log-sum-exp, per-token losses
  /// Frozen weights: stored as masters, or in the compute type, in which case there is no second
  /// copy.
  DType frozen = DType::f32;
  /// Frozen matrices of layers with adapters are quantised instead, and exist in the compute type
  /// only while their layer computes.
  Packing packing = Packing::none;

  bool has_copy() const { return compute != master; }
  bool frozen_has_copy() const { return compute != frozen; }
  /// The type in which a weight is stored.
  DType kept(bool trainable) const { return trainable ? master : frozen; }
};

/// Returns the precision with one of the names above. Throws DeckError for other names. Frozen
/// weights have the type of masters.
Precision precision_of(std::string_view name);
/// The same with frozen weights in the compute type.
Precision with_narrow_frozen(Precision precision);
/// The same with packed frozen matrices.
Precision with_packing(Precision precision, Packing packing);
/// The same with bf16 moments. Throws Error for fp64.
Precision with_narrow_moments(Precision precision);

class ParameterSet {
 public:
  /// Parameters start at multiples of this many elements, so that every tensor is vector-aligned.
  static constexpr std::int64_t kAlignment = 64;
  /// Every data-parallel slice of a bucket is a multiple of this (128 bytes of bf16).
  static constexpr std::int64_t kSliceAlignment = 64;

  /// `tensor` selects this rank's part of every tensor.
  explicit ParameterSet(const TensorSplit& tensor = {}) : tensor_(tensor) {}

  const TensorSplit& tensor() const { return alone_ ? kOneRank : tensor_; }
  /// While it exists, layers are built as on one rank, for sequences that each rank of the tensor
  /// axis has for itself (Sequence::alone): the parameters added meanwhile are whole on all of
  /// these ranks, and their gradients are sums over them.
  class Alone {
   public:
    explicit Alone(ParameterSet& parameters, bool yes = true)
        : parameters_(&parameters), before_(parameters.alone_) {
      if (yes) parameters.alone_ = true;
    }
    ~Alone() { parameters_->alone_ = before_; }
    Alone(const Alone&) = delete;
    Alone& operator=(const Alone&) = delete;

   private:
    ParameterSet* parameters_;
    bool before_;
  };
  /// Parameters added later belong to a new bucket of this name, in the order of the model on every
  /// rank; if not `resident`, another stage holds it. Returns its index among the buckets of this
  /// rank, or -1.
  int begin_bucket(std::string name, bool resident = true);
  /// Parameters added later belong to a bucket for the next tile of layers of the current bucket.
  void begin_tile();
  /// Parameters added later belong to the layer's own bucket again.
  void end_tiles() { current_ = base_; }
  /// The reference stays valid for the life of the set. Names are unique, except for the tiles of
  /// one tensor, which are added in their order. A copy (tied_to) has a bucket of its own, and so
  /// has the original.
  Parameter& add(Parameter parameter);
  /// Adds running statistics for the channels of `weight` [C], which was added before. The
  /// reference stays valid.
  RunningStatistics& add_running_statistics(const std::string& name, const Parameter& weight);
  /// Freezes the parameters, resident or not, for which `chosen` is true; must precede place().
  /// `chosen` is called for the first tile of a tensor and the original of a tied weight, and
  /// decides for all tiles and copies.
  void freeze(const std::function<bool(const Parameter&)>& chosen);
  /// Marks the frozen matrices of layers with adapters that are whole blocks as packed, resident or
  /// not; called after freeze(). Throws DeckError if there is none, or if this rank's part of one
  /// begins or ends inside a block.
  void pack();
  /// Fixes offsets for buckets that are divided into `slices` slices. Called once, after the model
  /// is built. Frozen parameters move to buckets of their own, which are not trained and follow all
  /// others in flat memory; the numbers of the other buckets do not change.
  void place(int slices);

  /// Resident parameters, copies included.
  std::deque<Parameter>& parameters() { return parameters_; }
  const std::deque<Parameter>& parameters() const { return parameters_; }
  std::vector<Bucket>& buckets() { return buckets_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Every logical tensor of the model once, in the order of the model, resident or not. For tiles
  /// this is the first one, which links to the others (Parameter::next_tile).
  const std::vector<const Parameter*>& all() const { return all_; }
  /// Copies of tied weights, resident or not.
  const std::vector<const Parameter*>& copies() const { return copies_; }
  /// Running statistics of all such norms of the model, in its order, resident or not (see
  /// `weight`).
  std::deque<RunningStatistics>& running_statistics() { return running_; }
  const std::deque<RunningStatistics>& running_statistics() const { return running_; }
  /// All buckets of the model, resident or not, except those of copies and those beside another.
  /// `size` and `offset` are set only in resident ones.
  std::vector<const Bucket*> model_buckets() const;
  /// Elements of all resident buckets that are not packed, padding included.
  std::int64_t flat_size() const { return flat_size_; }
  /// Elements of the trained buckets, which come first: gradients and moments have this size.
  std::int64_t trained_size() const { return trained_size_; }
  /// Elements of the packed buckets, padding included.
  std::int64_t packed_size() const { return packed_size_; }

  /// Points every parameter into flat memory of flat_size() elements each (gradients:
  /// trained_size()); nullptr leaves views without memory, but with type and shape.
  void bind(const Precision& precision, void* values, void* masters, void* gradients);

  /// Points the parameters of one bucket into memory of bucket.size elements.
  void bind_values(const Bucket& bucket, const TensorView& values);
  void bind_gradients(const Bucket& bucket, const TensorView& gradients);

  /// Logical counts of the whole model, padding not included.
  std::int64_t count() const;
  std::int64_t count_decayed() const;
  std::int64_t count_frozen() const;
  std::int64_t count_packed() const;

 private:
  static constexpr TensorSplit kOneRank{};
  /// A bucket of the model: its index in buckets_ or elsewhere_.
  struct Place {
    bool resident;
    std::size_t index;
  };
  Bucket& at(const Place& place) { return (place.resident ? buckets_ : elsewhere_)[place.index]; }
  const Bucket& at(const Place& place) const {
    return (place.resident ? buckets_ : elsewhere_)[place.index];
  }
  static void join_tiles(std::deque<Parameter>& memory);
  void number_elements();
  void part_frozen();
  /// Moves the parameters of a bucket for which `apart` is true to a new bucket beside it, if there
  /// are others. Returns its place, or that of the bucket.
  Place part(const Place& from, const char* suffix, bool (*apart)(const Parameter*));
  const Bucket& bucket_with(const Parameter* parameter) const;

  TensorSplit tensor_;
  bool alone_ = false;
  std::deque<Parameter> parameters_, described_;
  std::deque<RunningStatistics> running_;
  std::vector<const Parameter*> all_, copies_;
  std::vector<Bucket> buckets_, elsewhere_;
  std::vector<Place> order_;
  std::size_t base_ = 0, current_ = 0;  // indices into order_: the last bucket begun that is no
                                        // tile, and the current one
  std::int64_t flat_size_ = 0, trained_size_ = 0, packed_size_ = 0;
};

/// Writes the initial values of this rank's elements from `first` on to zeroed host memory (f64,
/// f32 or bf16). Element i of the logical tensor is a function of (seed, name, i) only. Padding is
/// not changed.
void initialise(const Parameter& parameter, std::uint64_t seed, const TensorView& to,
                std::int64_t first = 0);

}  // namespace choir
