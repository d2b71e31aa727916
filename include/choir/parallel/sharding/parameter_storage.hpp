#pragma once
// The memory of a rank for parameters: values, masters and gradients of all buckets, and what of
// the training state is kept out of device memory.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/core/memory_plan.hpp"
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "choir/device/offload_memory.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/nn/precision.hpp"
#include "choir/parallel/sharding/bucket_ring.hpp"
#include "choir/parallel/sharding/sharding.hpp"

namespace choir {

struct OffloadOptions {
  /// Elements that an update fetches, works on and writes back at a time: long enough for the full
  /// rate of a link or a disk, and for kernels (a multiple of ops::kRoundingGroup).
  static constexpr std::int64_t kChunk = std::int64_t{1} << 20;

  MemoryPlace place = MemoryPlace::device;  ///< of the optimizer state
  bool parameters = false;                  ///< in host memory, with the optimizer state
  bool second_moment = true;                ///< the optimizer has one
  std::string directory{};                  ///< of the file
  std::int64_t chunk = kChunk;

  bool any() const { return place != MemoryPlace::device; }
  /// The same where it does something: where device memory is host memory, keeping state in the
  /// latter changes nothing.
  OffloadOptions on(const Device& device) const {
    return place == MemoryPlace::host && device.host_visible() ? OffloadOptions{} : *this;
  }
};

/// What of the training state of a rank is kept out of device memory, as flat arrays over its
/// slices of all buckets, like those of ParameterStorage. With N parameters of this rank (its
/// slices) and elements as in Precision:
///
///   offload     outside                                      stays on the device
///   optimizer   moments, masters beside a compute copy       compute copy, or masters without one
///   file        the same, in a file                          the same
///   all         moments, masters, compute copy beside them   whole buckets while they are in use
///               (parallel.zero = 3 only)
///
/// Floor of a step, beside the update itself: every byte outside is fetched and written back once,
/// so N * bytes / rate each way, of the link between host and device or of the disk; "all" also
/// fetches the compute values of every bucket for each forward and backward. Held on the device:
/// three windows of kChunk elements (see StateStream) instead of N.
class OffloadedState {
 public:
  /// `value`: what the model computes with, beside masters of another type.
  enum Field { master, first_moment, second_moment, value };
  static constexpr int kFields = 4;
  struct Contents {
    bool masters = false, values = false;  ///< beside the moments
  };

  OffloadedState() = default;
  /// Elements of this rank's slices: of masters, of values, and of each moment.
  struct Sizes {
    std::int64_t masters = 0, values = 0, moments = 0;
  };
  /// Collective over `world`; all of it is zero. StorageError on every rank when one of them cannot
  /// have its file.
  OffloadedState(const OffloadOptions& options, const Precision& precision, Contents contents,
                 const Sizes& sizes, Device& device, Communicator& world);

  bool has(Field field) const { return !fields_[static_cast<std::size_t>(field)].empty(); }
  /// 1-D, at an address of the host.
  const TensorView& of(Field field) const { return fields_[static_cast<std::size_t>(field)]; }
  /// Where element `first` of it is in the memory.
  std::size_t offset(Field field, std::int64_t first) const;
  const OffloadMemory& memory() const { return memory_; }
  MemoryPlace place() const { return memory_.place(); }
  std::int64_t chunk() const { return chunk_; }

 private:
  OffloadMemory memory_;
  std::int64_t chunk_ = 0;
  std::array<TensorView, kFields> fields_{};
};

/// The flat memory of all buckets on this rank: values, masters and gradients, each whole or only
/// this rank's slices, as the ZeRO stage says. What ranks reduce or gather lives in memory of their
/// communicator, so that it is done in place. Where the host cannot touch device memory, it fills
/// and reads it tensor by tensor through memory of its own.
///
///   stage   masters            values             gradients
///   0       whole              whole              whole
///   1       slice              whole              whole
///   2       slice              whole              slice (whole ones: GradientReducer)
///   3       slice              - (ParameterGatherer)   slice
///
/// Without a separate compute copy the masters of stages 0 to 2 are the values (slices of them).
///
/// Frozen parameters have no gradients; the rest of the table holds for them, too: masters and
/// values are spread as those of others, so that checkpoints have them. Where they are kept as what
/// computes (Precision::frozen), their values are their masters.
///
/// With offload (OffloadedState) moments, and masters beside a compute copy, are outside of device
/// memory; stage 3 then keeps slices of the compute copy, on the device, or with them ("all", which
/// is for stage 3) in host memory.
class ParameterStorage {
 public:
  /// Collective; places and binds the parameters. Gradients, and offload, only when `training`.
  /// `world`: all ranks that do the same, for offload.
  ParameterStorage(ParameterSet& parameters, const Precision& precision, Device& device,
                   Sharding sharding, bool training, const OffloadOptions& offload = {},
                   Communicator* world = nullptr);

  /// Local: writes the initial masters. Equal in every layout by construction.
  void initialise(std::uint64_t seed);
  /// Local: zeroes the gradients that are added to, before the first contribution of a step (or of
  /// a micro-batch) to the bucket.
  void begin_gradients(const Stream& stream, const Bucket& bucket);
  /// A digest that is the same number on every data-parallel rank, unless weights that should be
  /// equal are not: stage 0 of all masters, 1 and 2 of all values, padding between tensors not
  /// included; 3 of the slices, which are exchanged: collective over the group. `whole_only`: of
  /// those tensors that every rank of the tensor axis holds whole; then it is the same on those
  /// ranks, too.
  std::uint64_t digest(bool whole_only = false) const;
  /// Local. What is compared of a parameter: the master, or the value where masters are slices, or
  /// with ZeRO 3 this rank's slice of the master; and whether it is host memory beside a device.
  /// Empty where this rank has no part of it.
  std::pair<TensorView, bool> compared(const Parameter& p) const;
  /// Local. A digest of that.
  std::uint64_t digest_of(const Parameter& p, std::uint64_t digest = 0) const;

  const Precision& precision() const { return precision_; }
  ParameterSet& parameters() { return *parameters_; }
  const ParameterSet& parameters() const { return *parameters_; }
  const Sharding& sharding() const { return sharding_; }
  const Bucket& bucket_of(const Parameter& p) const {
    return parameters_->buckets()[static_cast<std::size_t>(p.bucket)];
  }

  // This rank's slice of a bucket, padding included, 1-D. Stage 0: the whole bucket.
  TensorView masters(const Bucket& bucket) const;
  TensorView gradients(const Bucket& bucket) const;  ///< of one that is trained
  /// Where AdamW leaves what the model computes with; empty when those are the masters, or are made
  /// from them when they are gathered.
  TensorView copies(const Bucket& bucket) const;
  /// Stage 3: what the slice of a whole bucket is made from.
  TensorView gathered_from(const Bucket& bucket) const;
  /// Local: makes the copies from the masters, after these were written from outside.
  void refresh_copies(const Stream& stream) const;

  /// nullptr: everything is on the device.
  const OffloadedState* offloaded() const { return offloaded_ ? &*offloaded_ : nullptr; }
  /// masters() of the bucket are host memory, or copies() and gathered_from().
  bool masters_outside(const Bucket& bucket) const {
    return narrow(bucket) ? parameters_outside_ : masters_outside();
  }
  bool values_outside() const { return parameters_outside_; }
  /// Any flat memory that has only the slices of all buckets, one after another.
  TensorView slice_of(const TensorView& slices, const Bucket& bucket) const {
    return slices.slice(bucket.offset / sharding_.slices(), bucket.size / sharding_.slices());
  }
  std::int64_t slices_size() const { return parameters_->flat_size() / sharding_.slices(); }
  /// ... of the buckets that are trained, which come first.
  std::int64_t trained_slices_size() const {
    return parameters_->trained_size() / sharding_.slices();
  }

  // The whole bucket.
  TensorView whole_values(const Bucket& bucket) const { return part(values_, bucket); }
  TensorView whole_gradients(const Bucket& bucket) const { return part(gradients_, bucket); }
  /// Stages 0 and 1: of all buckets.
  TensorView all_gradients() const { return gradients_; }

  /// Which local elements of a parameter this rank owns, and where they are in the slice of its
  /// bucket.
  Range owned(const Parameter& p) const { return sharding_.owned(bucket_of(p), p); }
  TensorView owned_part(const TensorView& slice, const Parameter& p) const;

  void add_to(MemoryPlan& plan) const;

 private:
  static TensorView part(const TensorView& flat, const Bucket& bucket) {
    return flat.slice(bucket.offset, bucket.size);
  }
  void add_outside_to(MemoryPlan& plan) const;
  std::uint64_t exchanged(std::uint64_t digest) const;
  bool masters_are_values() const { return !precision_.has_copy() && !sharding_.values_sharded(); }
  bool masters_outside() const { return offloaded_ && offloaded_->has(OffloadedState::master); }
  /// Kept in another type than the masters of what is trained.
  bool narrow(const Bucket& bucket) const {
    return !bucket.trainable && precision_.frozen != precision_.master;
  }
  /// Elements of masters that are not narrow, in this rank's slices.
  std::int64_t masters_size() const {
    return precision_.frozen == precision_.master ? slices_size() : trained_slices_size();
  }
  /// Stage 3: narrow slices lie behind those of what is trained.
  TensorView narrow_slice(const Bucket& bucket) const;
  void bind_narrow();
  void offload(const OffloadOptions& options, Communicator& world);
  void cast_outside(const TensorView& from, const TensorView& to) const;

  ParameterSet* parameters_;
  Precision precision_;
  Device* device_;
  Sharding sharding_;
  std::optional<OffloadedState> offloaded_;
  bool parameters_outside_ = false;
  Buffer master_memory_, copy_memory_, narrow_memory_, slice_gradient_memory_;
  CommMemory value_memory_, gradient_memory_;
  // Flat, 1-D; empty where not kept.
  TensorView masters_, values_, gradients_, slice_gradients_;
  TensorView slice_values_;  // stage 3 beside masters outside
  TensorView narrow_;        // stage 3 without those
};

}  // namespace choir
