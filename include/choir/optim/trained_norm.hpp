#pragma once
// The Euclidean norm of the whole gradient, or of the weights that have one: one number over unique
// elements, and the sums that it is made of.
#include <span>
#include <string>
#include <vector>

#include "choir/core/memory_plan.hpp"
#include "choir/device/device.hpp"
#include "choir/parallel/sharding/parameter_storage.hpp"

namespace choir {

/// Every logical tensor of the model, or tile of one, is cut into fixed chunks; chunk sums (f64)
/// are added in a fixed tree. What ranks of the tensor axis own of a tensor is cut rank by rank;
/// what several hold, one counts, and of tied weights one copy. The result depends neither on
/// data-parallel ranks nor on stages of a pipeline nor on threads nor on buckets. Where
/// data-parallel ranks own slices, each sums what it owns; a chunk cut by the border of a slice is
/// the sum of its pieces, which is as good but not the same bits. With `exact` the ranks show each
/// other their pieces of such chunks, at most one a border and a few at a time, and the sum is that
/// of the whole chunk. The chunk sums of the last few steps are kept, so that the tensors of a bad
/// step can be named after the next one was queued.
class TrainedNorm {
 public:
  enum class Of { gradients, masters };
  struct Options {
    int places = 1;      ///< keeps the chunk sums of so many steps
    bool exact = false;  ///< as above
    Of of = Of::gradients;
  };
  TrainedNorm(const ParameterStorage& storage, Device& device) : TrainedNorm(storage, device, Options()) {}
  TrainedNorm(const ParameterStorage& storage, Device& device, const Options& options);

  /// Collective over the data ranks of the storage and over `holders`, the axes whose ranks hold
  /// other parts of the model (tensor, pipeline); after all reductions. Whole gradients are read by
  /// all data ranks together, slices by their owners. Afterwards square_sum() holds the sum of
  /// squares, and `place` what it was made of.
  void compute(const Stream& stream, std::span<Communicator* const> holders, int place = 0);

  /// Logical tensors, tiles together, in the order of their chunks; the same for gradients and
  /// masters, and on every rank.
  struct Tensor {
    std::string name;
    std::int64_t first_chunk = 0;
  };
  std::vector<Tensor> tensors() const;
  std::int64_t chunks() const { return chunks_; }
  /// After compute(): [chunks] f64 on the device, over all ranks.
  TensorView chunk_sums(int place = 0) const { return partials(place); }

  /// Device scalar (f64).
  TensorView square_sum() const { return square_sum_; }
  /// Waits for the stream: names of the parameters whose gradient was not finite when `place` was
  /// computed. Local; the same on every rank.
  std::vector<std::string> not_finite(int place = 0) const;
  void add_to(MemoryPlan& plan) const {
    plan.add(of_ == Of::gradients ? "gradient norm" : "weight norms",
             memory_.bytes() + border_memory_.bytes());
  }

 private:
  /// Local elements that a rank of the tensor axis counts, and the chunks they are cut into.
  struct Part {
    const Parameter* parameter;
    const Parameter* whole;  // the first tile of its logical tensor
    bool mine;  // of this rank
    Range elements;
    std::int64_t chunks;
    std::int64_t at;    // the first of them, among those of all parts
    std::int64_t turn;  // the same, among those of this rank
  };
  /// A chunk that has elements in several slices of this rank's group.
  struct Cut {
    const Parameter* parameter;
    Range elements;      // local
    std::int64_t chunk;  // among those of all parts
  };
  TensorView partials(int place) const { return partials_.slice(place * chunks_, chunks_); }
  void find_cuts();
  void sum_shares(const Stream& stream, const TensorView& sums) const;
  void sum_slices(const Stream& stream, const TensorView& sums) const;
  void sum_cuts(const Stream& stream, const TensorView& sums) const;
  /// This rank's slice of a gradient, or master, 1-D.
  TensorView own_part(const Parameter& p) const {
    const Bucket& bucket = storage_->bucket_of(p);
    return storage_->owned_part(
        of_ == Of::gradients ? storage_->gradients(bucket) : storage_->masters(bucket), p);
  }

  const ParameterStorage* storage_;
  Of of_;
  std::vector<Part> parts_;  // of the whole model
  Device* device_;
  bool exact_;
  std::int64_t chunks_ = 0;  // of all parts
  std::int64_t mine_ = 0;    // of this rank's
  Buffer memory_, border_memory_;
  TensorView partials_;  // [places * chunks]
  TensorView square_sum_;
  std::vector<Cut> cuts_;  // exact only; the same on every rank of a group
  TensorView border_;      // [a few chunks] of the gradient, or the masters
};

}  // namespace choir
