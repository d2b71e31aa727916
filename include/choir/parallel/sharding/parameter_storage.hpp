#pragma once
// Parameter memory of a rank: values, masters and gradients of all buckets, and the part of the
// training state that is outside of device memory.
#include <array>
#include <cstdint>
#include <memory>
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
#include "choir/parallel/sharding/bucket_ring.hpp"
#include "choir/parallel/sharding/sharding.hpp"

namespace choir {

class PackedParameters;

struct OffloadOptions {
  /// Elements that an update fetches, processes and writes back at a time: enough for the full rate
  /// of a link or a disk, and for kernels (a multiple of ops::kRoundingGroup).
  static constexpr std::int64_t kChunk = std::int64_t{1} << 20;

  MemoryPlace place = MemoryPlace::device;  ///< location of the optimizer state
  bool parameters = false;                  ///< also keeps parameters in host memory
  bool second_moment = true;                ///< the optimizer has a second moment
  bool average = false;                     ///< the run keeps averaged weights
  /// Sums of gradients that are kept outside, too, with ZeRO 2 and 3: those of this rank's slices,
  /// and in reproducible mode one for each level of its tree. 0: gradients stay on the device.
  std::uint8_t gradient_sums = 0;
  std::string directory{};  ///< directory of the file
  std::int64_t chunk = kChunk;

  bool any() const { return place != MemoryPlace::device; }
  /// The same options if they have an effect on `device`. If device memory is host memory, keeping
  /// state in host memory changes nothing.
  OffloadOptions on(const Device& device) const {
    return place == MemoryPlace::host && device.host_visible() ? OffloadOptions{} : *this;
  }
};

/// The training state of a rank that is kept outside of device memory, as flat arrays over its
/// slices of all buckets, like those of ParameterStorage. N is the number of parameters of this
/// rank (its slices), and elements are as in Precision:
///
///   offload     outside                                      stays on the device
///   optimizer   moments, averaged weights, and masters       compute copy, or masters without one
///               beside a compute copy
///   file        the same, in a file                          the same
///   all         the same, masters in any case, and the       whole buckets while they are in use
///               compute copy beside them (ZeRO 3 only)
///
/// With OffloadOptions::gradient_sums, this rank's slices of gradients are outside as well, in host
/// memory, and on a device whose memory is host memory in a file of their own. Every micro-batch is
/// added to them there (GradientReducer), so the device holds gradients of a few buckets only. The
/// bits are those of gradients on the device.
///
/// Minimum cost of a step, beside the update itself: every byte outside is fetched and written back
/// once, so N * bytes / rate in each direction, where rate is that of the host-device link or the
/// disk. "all" also fetches the compute values of every bucket for each forward and backward.
/// Device memory: three windows of kChunk elements (see StateStream) instead of N.
class OffloadedState {
 public:
  /// `value`: the compute copy beside masters of another type. `gradient`: see show_gradients().
  enum Field { master, first_moment, second_moment, value, average, gradient };
  static constexpr int kFields = 6;
  struct Contents {
    bool masters = false, values = false;  ///< beside the moments
  };

  OffloadedState() = default;
  /// Number of elements in this rank's slices: of masters, of values, and of each moment and of
  /// the averaged weights.
  struct Sizes {
    std::int64_t masters = 0, values = 0, moments = 0;
  };
  /// Collective over `world`; the memory is zeroed. Throws StorageError on every rank if one of
  /// them cannot create its file.
  OffloadedState(const OffloadOptions& options, const Precision& precision, Contents contents,
                 const Sizes& sizes, Device& device, Communicator& world);

  bool has(Field field) const { return !fields_[static_cast<std::size_t>(field)].empty(); }
  /// The field as a 1-D view in host memory.
  const TensorView& of(Field field) const { return fields_[static_cast<std::size_t>(field)]; }
  /// Byte offset of element `first` of the field in the memory.
  std::size_t offset(Field field, std::int64_t first) const;
  const OffloadMemory& memory() const { return memory_; }
  MemoryPlace place() const { return memory_.place(); }
  std::int64_t chunk() const { return chunk_; }

  /// Makes gradients in host memory, which the device cannot read, a field of the state. An update
  /// reads it and writes nothing back; memory() does not contain it.
  void show_gradients(const TensorView& slices) {
    fields_[static_cast<std::size_t>(gradient)] = slices;
  }

 private:
  OffloadMemory memory_;
  std::int64_t chunk_ = 0;
  std::array<TensorView, kFields> fields_{};
};

/// The flat memory of all buckets on this rank: values, masters and gradients, each whole or only
/// this rank's slices, depending on the ZeRO stage. Memory that ranks reduce or gather is allocated
/// by their communicator, so that this happens in place. If the host cannot access device memory,
/// it fills and reads it tensor by tensor through host buffers.
///
///   stage   masters            values             gradients
///   0       whole              whole              whole
///   1       slice              whole              whole
///   2       slice              whole              slice (whole ones: GradientReducer)
///   3       slice              - (ParameterGatherer)   slice
///
/// Without a separate compute copy the masters of stages 0 to 2 are the values (slices of them).
///
/// Frozen parameters have no gradients. Otherwise the table also applies to them: their masters and
/// values are sharded like all others, so that checkpoints contain them. If they are stored in the
/// compute type (Precision::frozen), their values are their masters.
///
/// Packed parameters (Precision::packing) have neither masters nor values here: PackedParameters
/// has them whole, or this rank's slices in stage 3.
///
/// With offload (OffloadedState) the moments, and masters beside a compute copy, are outside of
/// device memory. Stage 3 then keeps slices of the compute copy, either on the device or, with
/// "all" (stage 3 only), in host memory.
class ParameterStorage {
 public:
  /// Collective; places and binds the parameters. Gradients and offload only if `training`. `world`
  /// contains all ranks that construct their storage at the same time, for offload.
  ParameterStorage(ParameterSet& parameters, const Precision& precision, Device& device,
                   Sharding sharding, bool training, const OffloadOptions& offload = {},
                   Communicator* world = nullptr);

  /// Local: writes the initial masters, which are equal in every layout by construction. Packed
  /// parameters remain 0 if not `packed`.
  void initialise(std::uint64_t seed, bool packed = true);
  /// Local: zeroes the gradients that are accumulated, before the first contribution of a step (or
  /// of a micro-batch) to the bucket.
  void begin_gradients(const Stream& stream, const Bucket& bucket);
  /// A digest that is equal on all data-parallel ranks unless weights that should be equal differ.
  /// Stage 0: of all masters; stages 1 and 2: of all values, without padding between tensors; stage
  /// 3: of the slices, which are exchanged: collective over the group. `whole_only` restricts it to
  /// tensors that every rank of the tensor axis holds whole; then it is equal on those ranks, too.
  std::uint64_t digest(bool whole_only = false) const;
  /// Local. The view of a parameter that is compared: the master; or the value if masters are
  /// slices; or with ZeRO 3 this rank's slice of the master. The flag is true if the view is in
  /// host memory beside a device. Empty if this rank has no part of it.
  std::pair<TensorView, bool> compared(const Parameter& p) const;
  /// Local. The digest of compared().
  std::uint64_t digest_of(const Parameter& p, std::uint64_t digest = 0) const;
  /// The packed parameters of this rank; nullptr if it has none.
  PackedParameters* packed() const { return packed_.get(); }

  const Precision& precision() const { return precision_; }
  ParameterSet& parameters() { return *parameters_; }
  const ParameterSet& parameters() const { return *parameters_; }
  const Sharding& sharding() const { return sharding_; }
  const Bucket& bucket_of(const Parameter& p) const {
    return parameters_->buckets()[static_cast<std::size_t>(p.bucket)];
  }

  // This rank's slice of a bucket, padding included, 1-D. Stage 0: the whole bucket.
  TensorView masters(const Bucket& bucket) const;
  /// Only of a trained bucket. In host memory if gradients_apart().
  TensorView gradients(const Bucket& bucket) const;
  /// The memory into which the optimizer writes the values that the model computes with; empty if
  /// the model computes with the masters, or if gathering converts the masters.
  TensorView copies(const Bucket& bucket) const;
  /// Stage 3: the source of this rank's slice of a whole bucket.
  TensorView gathered_from(const Bucket& bucket) const;
  /// Local: recomputes the copies after the masters were written from outside.
  void refresh_copies(const Stream& stream) const;

  /// The offloaded state; nullptr if everything is on the device.
  const OffloadedState* offloaded() const { return offloaded_ ? &*offloaded_ : nullptr; }
  /// True if masters() of the bucket are in host memory.
  bool masters_outside(const Bucket& bucket) const {
    return narrow(bucket) ? parameters_outside_ : masters_outside();
  }
  bool values_outside() const { return parameters_outside_; }
  /// The place of gradients().
  MemoryPlace gradient_place() const { return gradients_outside_.place(); }
  /// True if gradients() are in host memory that the device cannot read.
  bool gradients_apart() const { return offloaded_ && offloaded_->has(OffloadedState::gradient); }
  /// With offloaded gradients: this rank's slice of the bucket in one of the sums beside them.
  TensorView gradient_level(std::size_t level, const Bucket& bucket) const;
  /// Elements that a device reads of offloaded memory at a time.
  std::int64_t offload_chunk() const { return offload_chunk_; }
  /// The part of `bucket` in a flat array that contains only the slices of all buckets.
  TensorView slice_of(const TensorView& slices, const Bucket& bucket) const {
    return slices.slice(bucket.offset / sharding_.slices(), bucket.size / sharding_.slices());
  }
  std::int64_t slices_size() const { return parameters_->flat_size() / sharding_.slices(); }
  /// The number of elements in the slices of trained buckets, which come first.
  std::int64_t trained_slices_size() const {
    return parameters_->trained_size() / sharding_.slices();
  }

  // The whole bucket.
  TensorView whole_values(const Bucket& bucket) const { return part(values_, bucket); }
  TensorView whole_gradients(const Bucket& bucket) const { return part(gradients_, bucket); }
  /// Stages 0 and 1: the gradients of all buckets.
  TensorView all_gradients() const { return gradients_; }

  /// The local elements of a parameter that this rank owns; owned_part() is their view in the slice
  /// of its bucket.
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
  /// True if the bucket is stored in another type than the masters of trained parameters.
  bool narrow(const Bucket& bucket) const {
    return !bucket.trainable && !bucket.packed && precision_.frozen != precision_.master;
  }
  /// Elements of masters in this rank's slices, without narrow buckets.
  std::int64_t masters_size() const {
    return precision_.frozen == precision_.master ? slices_size() : trained_slices_size();
  }
  /// Stage 3: narrow slices follow those of trained buckets.
  TensorView narrow_slice(const Bucket& bucket) const;
  void bind_narrow();
  void offload(const OffloadOptions& options, Communicator& world);
  TensorView offload_gradients(const OffloadOptions& options, Communicator& world);
  void cast_outside(const TensorView& from, const TensorView& to) const;
  void initialise_packed(std::uint64_t seed);

  ParameterSet* parameters_;
  Precision precision_;
  Device* device_;
  Sharding sharding_;
  std::optional<OffloadedState> offloaded_;
  std::shared_ptr<PackedParameters> packed_;  // shared, because the type is not complete here
  bool parameters_outside_ = false;
  OffloadMemory gradients_outside_;  // the slices, and after them the sums beside them
  std::int64_t offload_chunk_ = 0;
  Buffer master_memory_, copy_memory_, narrow_memory_, slice_gradient_memory_;
  CommMemory value_memory_, gradient_memory_;
  // Flat, 1-D; empty if not kept.
  TensorView masters_, values_, gradients_, slice_gradients_;
  TensorView slice_values_;  // stage 3 with offloaded masters
  TensorView narrow_;        // stage 3 otherwise
};

}  // namespace choir
