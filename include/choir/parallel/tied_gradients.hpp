#pragma once
// Joins the gradients of tied weights that live in several places: the embedding on the first stage
// of a pipeline and its copy, the head, on the last (or both on one rank, where each place of use
// keeps its own sum). Each holds the gradient of its place of use, summed over micro-batches and
// data-parallel ranks; afterwards both hold the same sum, so that equal copies stay equal.
//
// The buckets of both are laid out alike, so ranks with the same slice exchange slices: with G
// bytes of gradient and ZeRO over d ranks, G / d there and back.
#include "choir/comm/communicator.hpp"
#include "choir/core/memory_plan.hpp"
#include "choir/core/negative_control.hpp"
#include "choir/device/device.hpp"
#include "choir/parallel/parameter_storage.hpp"

namespace choir {

class TiedGradients {
 public:
  /// Local. `stages`: the pipeline axis.
  TiedGradients(ParameterStorage& storage, Device& device, Communicator& stages,
                NegativeControl control = NegativeControl::none);

  /// Collective over the stages that hold a place of use, after all reductions over data ranks.
  void join(const Stream& stream);

  void add_to(MemoryPlan& plan) const;

 private:
  /// This rank's slice of the gradient.
  TensorView slice(const Parameter& place) const;
  void exchange(const Stream& stream, const Parameter& place, int peer);

  ParameterStorage* storage_;
  Communicator* stages_;
  NegativeControl control_;
  Buffer memory_;  ///< for the slice of the other stage
};

}  // namespace choir
