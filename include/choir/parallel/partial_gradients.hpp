#pragma once
// Sums the gradients that ranks of the tensor axis hold in part (norms under sequence parallelism,
// heads of keys and values held by several ranks) before they are reduced over the data axis. Which
// ones is derived from the shard specs; those of a bucket travel together. They are a few vectors a
// block: 2 C floats a norm, so the call is blocking.
#include <memory>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/core/memory_plan.hpp"
#include "choir/core/negative_control.hpp"
#include "choir/device/device.hpp"
#include "choir/nn/bucket_hooks.hpp"
#include "choir/nn/parameter_set.hpp"

namespace choir {

class PartialGradients final : public BucketHooks {
 public:
  /// Collective over `tensor`. `then` hears of every bucket after its gradients are whole.
  PartialGradients(ParameterSet& parameters, Device& device, DType gradient, Communicator& tensor,
                   Summation order, BucketHooks& then,
                   NegativeControl control = NegativeControl::none);

  /// Local: before the backward of a micro-batch through a piece of the model. `complete`: its
  /// gradients leave the rank when they are ready, so they must be whole by then. Otherwise more
  /// micro-batches add to them first.
  void begin_micro_batch(const Stream& stream, bool complete);

  void acquire(int bucket) override { then_->acquire(bucket); }
  void release(int bucket) override { then_->release(bucket); }
  void begin_gradients(int bucket) override { then_->begin_gradients(bucket); }
  /// Collective over tensor where something is partial.
  void gradients_ready(int bucket) override;

  void add_to(MemoryPlan& plan) const;

 private:
  struct Run {
    const Parameter* parameter;
    std::int64_t local, count;  ///< of its gradient
    std::int64_t place;         ///< in the message
  };
  struct Message {
    std::vector<Run> runs;
    std::int64_t size = 0;
  };

  Communicator* tensor_;
  Summation order_;
  BucketHooks* then_;
  Stream stream_;
  bool complete_ = true;
  std::vector<Message> messages_;  // by bucket
  std::unique_ptr<CommBuffer> memory_;
  TensorView message_;
};

}  // namespace choir
