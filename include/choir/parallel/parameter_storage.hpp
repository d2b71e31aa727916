#pragma once
// The flat memory of all buckets on this rank: values, masters and gradients. Gradients live in
// memory of the data-parallel communicator, so that they can be reduced in place. Where the host
// cannot touch device memory, it fills and reads it tensor by tensor through memory of its own.
#include <cstdint>
#include <memory>

#include "choir/comm/communicator.hpp"
#include "choir/core/memory_plan.hpp"
#include "choir/device/device.hpp"
#include "choir/nn/parameter_set.hpp"

namespace choir {

class ParameterStorage {
 public:
  /// Collective over `data`; places and binds the parameters. Gradients only when `training`.
  ParameterStorage(ParameterSet& parameters, const Precision& precision, Device& device,
                   Communicator& data, bool training);

  /// Local: writes the initial masters and values. Equal on every rank by construction.
  void initialise(std::uint64_t seed);
  /// Values from masters, after masters were loaded.
  void publish(const Stream& stream);
  /// Local: prepares the gradients for the first contribution of a step (or of a micro-batch).
  void begin_gradients(const Stream& stream);
  /// Local: a digest of all masters, padding between tensors not included; `whole_only`: of those
  /// that every rank of the tensor axis holds whole.
  std::uint64_t digest(bool whole_only = false) const;

  const Precision& precision() const { return precision_; }
  ParameterSet& parameters() { return *parameters_; }
  /// The whole bucket, padding included, 1-D.
  TensorView gradients(const Bucket& bucket) const { return part(gradients_, bucket); }
  TensorView masters(const Bucket& bucket) const { return part(masters_, bucket); }
  /// Empty when the model computes with the masters.
  TensorView copies(const Bucket& bucket) const {
    return precision_.has_copy() ? part(values_, bucket) : TensorView{};
  }
  TensorView all_gradients() const { return gradients_; }
  bool gradients_shared() const { return gradient_memory_ && gradient_memory_->shared(); }

  void add_to(MemoryPlan& plan) const;

 private:
  static TensorView part(const TensorView& flat, const Bucket& bucket) {
    return flat.slice(bucket.offset, bucket.size);
  }

  ParameterSet* parameters_;
  Precision precision_;
  Device* device_;
  Buffer master_memory_, value_memory_, own_gradients_;
  std::unique_ptr<CommBuffer> gradient_memory_;
  TensorView masters_, values_, gradients_;  // flat, 1-D
};

}  // namespace choir
