#pragma once
// Zeroed memory that ranks reduce or gather in place: of their communicator, where it is of use;
// of the device where nobody else touches it, and in a plan.
#include <memory>

#include "choir/comm/communicator.hpp"
#include "choir/device/device.hpp"

namespace choir {

class CommMemory {
 public:
  CommMemory() = default;
  /// Collective.
  CommMemory(Device& device, Communicator& comm, std::size_t bytes);

  void* data() const { return shared_ ? shared_->data() : own_.data(); }
  std::size_t bytes() const { return shared_ ? shared_->bytes() : own_.bytes(); }
  bool shared() const { return shared_ && shared_->shared(); }

 private:
  Buffer own_;
  std::unique_ptr<CommBuffer> shared_;
};

}  // namespace choir
