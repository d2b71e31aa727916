#include "choir/parallel/tied_gradients.hpp"

#include <algorithm>
#include <array>

#include "choir/ops/reduce.hpp"

namespace choir {

TiedGradients::TiedGradients(ParameterStorage& storage, Device& device, Communicator& stages,
                             NegativeControl control)
    : storage_(&storage), stages_(&stages), control_(control) {
  std::size_t largest = 0;
  for (const Parameter* copy : storage.parameters().copies())
    if (copy->trainable && copy->resident() != copy->tied_to->resident())
      largest = std::max(largest, slice(copy->resident() ? *copy : *copy->tied_to).bytes());
  if (largest > 0) memory_ = Buffer(device, largest);
}

TensorView TiedGradients::slice(const Parameter& place) const {
  return storage_->gradients(storage_->bucket_of(place));
}

// The embedding is on the first stage, the head on the last.
void TiedGradients::join(const Stream& stream) {
  if (control_ == NegativeControl::tied_unjoined) return;
  for (const Parameter* copy : storage_->parameters().copies()) {
    const Parameter& original = *copy->tied_to;
    if (!original.trainable) continue;
    if (copy->resident() && original.resident()) {
      ops::add(stream, slice(original), slice(*copy), slice(original));
      ops::copy(stream, slice(original), slice(*copy));
    } else if (original.resident()) {
      exchange(stream, original, stages_->size() - 1);
    } else if (copy->resident()) {
      exchange(stream, *copy, 0);
    }
  }
}

// Addition of two numbers does not depend on their order: both ends have the same bits.
void TiedGradients::exchange(const Stream& stream, const Parameter& place, int peer) {
  const TensorView mine = slice(place);
  const TensorView theirs{memory_.data(), mine.dtype, mine.shape};
  const std::array<Message, 2> messages{
      Message{.send = true, .data = mine.data, .bytes = mine.bytes(), .peer = peer},
      Message{.send = false, .data = theirs.data, .bytes = theirs.bytes(), .peer = peer}};
  stages_->start_exchange(messages).wait();
  ops::add(stream, mine, theirs, mine);
}

void TiedGradients::add_to(MemoryPlan& plan) const {
  if (memory_.bytes() > 0) plan.add("gradients, tied weights", memory_.bytes());
}

}  // namespace choir
