#pragma once
// The Euclidean norm of the whole gradient: one number over unique elements.
//
// Every logical tensor is cut into fixed chunks; chunk sums (f64) are added in a fixed tree. The
// result depends neither on ranks nor on threads nor on buckets. Where ranks own slices, each sums
// what it owns; a chunk cut by the border of a slice is the sum of its pieces, which is as good but
// not the same bits. With `exact` the ranks show each other their pieces of such chunks, at most
// one a border and a few at a time, and the sum is that of the whole chunk. The chunk sums of the
// last few steps are kept, so that the tensors of a bad step can be named after the next one was
// queued.
#include <string>
#include <vector>

#include "choir/core/memory_plan.hpp"
#include "choir/device/device.hpp"
#include "choir/parallel/parameter_storage.hpp"

namespace choir {

class GradientNorm {
 public:
  /// Keeps the chunk sums of `places` steps.
  GradientNorm(const ParameterStorage& storage, Device& device, int places = 1, bool exact = false);

  /// Collective over the data ranks, after all reductions. Whole gradients are read by all of them
  /// together, slices by their owners. Afterwards square_sum() holds the sum of squares, and
  /// `place` what it was made of.
  void compute(const Stream& stream, int place = 0);

  /// Device scalar (f64).
  TensorView square_sum() const { return square_sum_; }
  /// Waits for the stream: names of the parameters whose gradient was not finite when `place` was
  /// computed. Local; the same on every rank.
  std::vector<std::string> not_finite(int place = 0) const;
  void add_to(MemoryPlan& plan) const {
    plan.add("gradient norm", memory_.bytes() + border_memory_.bytes());
  }

 private:
  /// A chunk that has elements in several slices.
  struct Cut {
    const Parameter* parameter;
    Range elements;
    std::int64_t chunk;  // among those of all tensors
  };
  TensorView partials(int place) const { return partials_.slice(place * chunks_, chunks_); }
  void find_cuts();
  void sum_shares(const Stream& stream, const TensorView& sums) const;
  void sum_slices(const Stream& stream, const TensorView& sums) const;
  void sum_cuts(const Stream& stream, const TensorView& sums) const;

  const ParameterStorage* storage_;
  Device* device_;
  bool exact_;
  std::int64_t chunks_ = 0;  // of all tensors
  Buffer memory_, border_memory_;
  TensorView partials_;  // [places * chunks]
  TensorView square_sum_;
  std::vector<Cut> cuts_;  // exact only; the same on every rank
  TensorView border_;      // [a few chunks] of the gradient
};

}  // namespace choir
