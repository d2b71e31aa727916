#pragma once
// The Euclidean norm of the whole gradient, or of the weights that have one: one number over unique
// elements, and the sums that it is made of.
#include <span>
#include <string>
#include <vector>

#include "choir/core/memory_plan.hpp"
#include "choir/device/device.hpp"
#include "choir/ops/reduce.hpp"
#include "choir/parallel/sharding/parameter_storage.hpp"

namespace choir {

/// Every logical tensor of the model, or tile of one, is cut into fixed chunks. What ranks of the
/// tensor axis own of a tensor is cut rank by rank; what several hold, one counts, and of tied
/// weights one copy. A rank adds the chunks (f64) of each tensor that it has a part of, and only
/// these sums, one for each rank of the tensor axis that owns a part, meet those of other ranks: a
/// few bytes a tensor, the same bits everywhere, for no two ranks that hold other parts add to one
/// number.
///
/// With `exact` the sums that meet are those of all chunks of the model, in one fixed tree: the
/// result depends neither on data-parallel ranks nor on stages of a pipeline nor on threads nor on
/// buckets, and takes 8 bytes for 16,384 parameters of the model on every rank. Where data-parallel
/// ranks own slices they show each other their pieces of chunks that borders of slices cut, at most
/// one a border and a few at a time. The sums of the last few steps are kept, so that the tensors
/// of a bad step can be named after the next one was queued.
class TrainedNorm {
 public:
  enum class Of { gradients, masters };
  struct Options {
    int places = 1;      ///< keeps the sums of so many steps
    bool exact = false;  ///< as above
    Of of = Of::gradients;
  };
  TrainedNorm(const ParameterStorage& storage, Device& device)
      : TrainedNorm(storage, device, Options()) {}
  TrainedNorm(const ParameterStorage& storage, Device& device, const Options& options);

  /// Collective over the data ranks of the storage and over `holders`, the axes whose ranks hold
  /// other parts of the model (tensor, pipeline); after all reductions. Whole gradients are read by
  /// all data ranks together, slices by their owners. Afterwards square_sum() holds the sum of
  /// squares, and `place` what it was made of.
  void compute(const Stream& stream, std::span<Communicator* const> holders, int place = 0);

  /// Logical tensors, tiles together, in the order of their sums; the same for gradients and
  /// masters, and on every rank.
  struct Tensor {
    std::string name;
    std::int64_t first_sum = 0;
  };
  std::vector<Tensor> tensors() const;
  /// After compute(): f64 on the device, over all ranks.
  TensorView sums(int place = 0) const { return sums_.slice(place * count_, count_); }

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
  /// Consecutive sums of what one rank of the tensor axis counts of a parameter.
  struct Run {
    const Parameter* parameter;
    const Parameter* whole;  // the first tile of its logical tensor
    std::int64_t count;
  };
  /// Local elements that this rank counts, and the chunks they are cut into.
  struct Part {
    const Parameter* parameter;
    Range elements;
    std::int64_t chunks;
    std::int64_t at;    // the first of them, among chunk_sums_
    std::int64_t turn;  // the same, among those of this rank
  };
  /// Chunks of this rank that become one sum.
  struct Total {
    std::int64_t turn, chunks, sum;
  };
  /// A chunk that has elements in several slices of this rank's group.
  struct Cut {
    const Parameter* parameter;
    Range elements;      // local
    std::int64_t chunk;  // among chunk_sums_
  };
  void add_sums(const Parameter* p, const Parameter* whole);
  void find_cuts();
  /// f64 sums of chunks, which are zero.
  void sum_shares(const Stream& stream, const TensorView& chunks);
  void sum_slices(const Stream& stream, const TensorView& chunks);
  void sum_cuts(const Stream& stream, const TensorView& chunks);
  /// This rank's slice of a gradient, or master, 1-D.
  TensorView own_part(const Parameter& p) const {
    const Bucket& bucket = storage_->bucket_of(p);
    return storage_->owned_part(
        of_ == Of::gradients ? storage_->gradients(bucket) : storage_->masters(bucket), p);
  }

  const ParameterStorage* storage_;
  Of of_;
  Device* device_;
  bool exact_;
  std::vector<Run> runs_;  // of the whole model
  std::vector<Part> parts_;
  std::vector<Total> totals_;  // not with exact
  std::int64_t count_ = 0;     // of sums
  std::int64_t mine_ = 0;      // chunks of this rank
  // The same of every rank of the tensor axis: all have room for the most, as planned for all.
  std::vector<std::int64_t> of_ranks_{0};
  Buffer memory_, border_memory_;
  TensorView sums_;        // [places * count]
  TensorView chunk_sums_;  // [mine] of this rank; not with exact, where sums are those of chunks
  TensorView square_sum_;
  std::vector<ops::Summed> summed_;  // at a time; kept, so that steps allocate nothing
  std::vector<Cut> cuts_;            // exact only; the same on every rank of a group
  TensorView border_;                // [a few chunks] of the gradient, or the masters
};

}  // namespace choir
