#include "choir/parallel/partial_gradients.hpp"

#include <algorithm>

#include "choir/nn/shard.hpp"
#include "choir/ops/reduce.hpp"

namespace choir {

PartialGradients::PartialGradients(ParameterSet& parameters, Device& device, DType gradient,
                                   Communicator& tensor, Summation order, BucketHooks& then,
                                   NegativeControl control)
    : tensor_(&tensor), order_(order), then_(&then), stream_(device) {
  std::int64_t largest = 0;
  for (const Bucket& bucket : parameters.buckets()) {
    Message message;
    for (const Parameter* p : bucket.parameters) {
      if (!p->trainable) continue;
      for (const PartialRun& run : partial_runs(*p)) {
        if (control == (p->shard.split_dim < 0 ? NegativeControl::norm_unreduced
                                               : NegativeControl::kv_unsummed))
          continue;
        message.runs.push_back({p, run.local, run.count, message.size + run.place});
        message.size += run.size;
      }
    }
    largest = std::max(largest, message.size);
    messages_.push_back(std::move(message));
  }
  if (largest == 0) return;
  memory_ = tensor.allocate(static_cast<std::size_t>(largest) * size_of(gradient));
  message_ = {memory_->data(), gradient, {largest}};
}

void PartialGradients::begin_micro_batch(const Stream& stream, bool complete) {
  stream_ = stream;
  complete_ = complete;
}

void PartialGradients::gradients_ready(int bucket) {
  const Message& message = messages_[static_cast<std::size_t>(bucket)];
  if (complete_ && message.size > 0) {
    const auto both = [&](const Run& run, auto&& copy) {
      const TensorView gradient = run.parameter->gradient;
      copy(gradient.reshaped({gradient.count()}).slice(run.local, run.count),
           message_.slice(run.place, run.count));
    };
    ops::zero(stream_, message_.slice(0, message.size));  // parts that only other ranks hold
    for (const Run& run : message.runs)
      both(run, [&](const TensorView& gradient, const TensorView& place) {
        ops::copy(stream_, gradient, place);
      });
    tensor_->all_reduce(message_.data, static_cast<std::size_t>(message.size), message_.dtype,
                        ReduceOp::sum, order_);
    for (const Run& run : message.runs)
      both(run, [&](const TensorView& gradient, const TensorView& place) {
        ops::copy(stream_, place, gradient);
      });
  }
  then_->gradients_ready(bucket);
}

void PartialGradients::add_to(MemoryPlan& plan) const {
  if (!message_.empty()) plan.add("gradients, sums over tensor ranks", message_.bytes());
}

}  // namespace choir
