#pragma once
// The Euclidean norm of the whole gradient: one number over unique elements.
//
// Every logical tensor is cut into fixed chunks; chunk sums (f64) are added in a fixed tree. The
// result depends neither on data-parallel ranks nor on threads nor on buckets. What ranks of the
// tensor axis own of a tensor is cut rank by rank; what several hold, one counts. The chunk sums of
// the last few steps are kept, so that the tensors of a bad step can be named after the next one
// was queued.
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/core/memory_plan.hpp"
#include "choir/core/negative_control.hpp"
#include "choir/device/device.hpp"
#include "choir/nn/parameter_set.hpp"

namespace choir {

class GradientNorm {
 public:
  /// Keeps the chunk sums of `places` steps.
  GradientNorm(const ParameterSet& parameters, Device& device, int places = 1,
               NegativeControl control = NegativeControl::none);

  /// Collective over `data`, whose ranks all hold the same reduced gradient and share the reading
  /// of it, and over `tensor`, whose ranks hold parts. Afterwards square_sum() holds the sum of
  /// squares, and `place` what it was made of.
  void compute(const Stream& stream, Communicator& data, Communicator& tensor, int place = 0);

  /// Device scalar (f64).
  TensorView square_sum() const { return square_sum_; }
  /// Waits for the stream: names of the parameters whose gradient was not finite when `place` was
  /// computed. Local; the same on every rank.
  std::vector<std::string> not_finite(int place = 0) const;
  void add_to(MemoryPlan& plan) const { plan.add("gradient norm", memory_.bytes()); }

 private:
  /// Elements that a rank of the tensor axis counts, and the chunks they are cut into.
  struct Part {
    const Parameter* parameter;
    int rank;
    std::int64_t first, count;  ///< of its local elements
    std::int64_t chunks;
  };

  TensorView partials(int place) const { return partials_.slice(place * chunks_, chunks_); }

  std::vector<Part> parts_;
  Device* device_;
  std::int64_t chunks_ = 0;  // of all tensors
  Buffer memory_;
  TensorView partials_;  // [places * chunks]
  TensorView square_sum_;
};

}  // namespace choir
